"""Waiting for what happens in its own time, as long as a busy machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["eventually"]

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.01


def eventually(is_so: Callable[[], bool]) -> bool:
    """Whether it becomes so; False when patience is over."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
