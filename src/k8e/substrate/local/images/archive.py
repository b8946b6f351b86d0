"""placeholder"""
from __future__ import annotations
from pathlib import Path
def unpack(path: Path, target: Path) -> None:
    raise NotImplementedError
