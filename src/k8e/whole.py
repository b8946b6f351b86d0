"""Files that are whole or not there: whoever reads one sees the old content or the new."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["clear", "replace", "unfinished"]

_UNFINISHED = ".new"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def replace(path: Path, data: bytes, *, mode: int, durable: bool = False) -> None:
    """Give a file new content, never readable by others than `mode` says for even a moment.

    With `durable` it is there after a loss of power, too.
    """
    temporary = unfinished(path)
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


def unfinished(path: Path) -> Path:
    """A name for what will be this file once it is whole.

    Nobody else's, whichever thread, process or machine that shares the directory writes the same file now.
    """
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}{_UNFINISHED}")


def clear(directory: Path, name: str = "*") -> None:
    """Remove what writers that were killed half-way left of a file, or of all; only where nobody writes it now."""
    for left in directory.glob(f".{name}.*{_UNFINISHED}"):
        left.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    """A name is on the disk when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
