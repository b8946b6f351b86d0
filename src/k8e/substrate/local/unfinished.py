"""What a crash left half-made: everything that is made once appears by a rename from a name that tells."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["UNFINISHED", "clear"]

UNFINISHED = ".new-"


def clear(directory: Path) -> None:
    """Remove what nobody will finish; only for the one server that owns the directory, before it makes anything."""
    for path in directory.glob(f"{UNFINISHED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
