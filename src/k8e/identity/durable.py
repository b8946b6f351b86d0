"""Files that are whole or not there, before and after a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace"]


def replace(path: Path, data: bytes, *, mode: int) -> None:
    """Give a file new content, never readable by others than `mode` says for even a moment."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        # The mask of the process may have taken bits away.
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
