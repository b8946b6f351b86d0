"""How the server's log looks: time, level, a constant message, then its fields as key=value.

A log that lies in a file of ours stays bounded: when it is full it becomes `<name>.1`, in the place of the one before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

from k8e.visible import LINES, terminal_safe

__all__ = ["LIMIT_BYTES", "configure"]

LIMIT_BYTES = 16 * 2**20
"""Of one file; there are two."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OUTPUTS = (1, 2)


class Lines(logging.Formatter):
    """One record, one line, fields last; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        first, _, trace = super().format(record).partition("\n")
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        shown = "".join(f" {key}={json.dumps(value, default=str)}" for key, value in fields.items())
        # What an error says may come from inside a sandbox, and a log is read at a terminal.
        return terminal_safe(first) + shown + (f"\n{terminal_safe(trace, keep=LINES)}" if trace else "")


class Bounded(logging.StreamHandler):  # type: ignore[type-arg]  # its parameter is unknown at run time
    """Standard error, moved aside when it is the file at `path` and has grown past the limit.

    What does not go through a logger – a crash's last words – goes to the same descriptors, so it is they that change.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._limit_bytes = limit_bytes

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        # A full or vanished disk: the log goes on where it is.
        with contextlib.suppress(OSError):
            self._move_aside()

    def _move_aside(self) -> None:
        held = os.fstat(_OUTPUTS[-1])
        if held.st_size < self._limit_bytes:
            return
        # Somebody else's file, or one that another process has moved already, is not ours to rename.
        if os.path.samestat(held, self._path.stat()):
            self._path.rename(self._path.with_name(f"{self._path.name}.1"))
        fresh = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for descriptor in _OUTPUTS:
            if os.path.samestat(held, os.fstat(descriptor)):
                os.dup2(fresh, descriptor)
        os.close(fresh)


def configure(level: str, file: Path | None = None, *, limit_bytes: int = LIMIT_BYTES) -> None:
    """Log to standard error from here on, bounded where that is `file`."""
    is_ours = file is not None and _is_standard_error(file)
    handler = Bounded(file, limit_bytes) if file is not None and is_ours else logging.StreamHandler()
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _is_standard_error(file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(_OUTPUTS[-1]), file.stat())
    except OSError:
        return False
