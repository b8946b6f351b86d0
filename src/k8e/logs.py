"""How the server's log looks: time, level, a constant message, then its fields as key=value."""

from __future__ import annotations

import json
import logging

__all__ = ["configure"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Lines(logging.Formatter):
    """One record, one line, fields last; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        first, _, trace = super().format(record).partition("\n")
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        shown = "".join(f" {key}={json.dumps(value, default=str)}" for key, value in fields.items())
        return first + shown + (f"\n{trace}" if trace else "")


def configure(level: str) -> None:
    """Log to standard error from here on."""
    handler = logging.StreamHandler()
    handler.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
