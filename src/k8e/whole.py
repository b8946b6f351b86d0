"""Files that are whole or not there: whoever reads one sees the old content or the new."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def replace(path: Path, data: bytes, *, mode: int, durable: bool = False) -> None:
    """Give a file new content, never readable by others than `mode` says for even a moment.

    With `durable` it is there after a loss of power, too.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, _NEW, mode), "wb") as file:
            file.write(data)
            if hasattr(os, "fchmod"):  # elsewhere files have no such modes
                # The mask of the process may have taken bits away.
                os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync(path.parent)


def _sync(directory: Path) -> None:
    """A name is on the disk when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
