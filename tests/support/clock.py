"""A clock that goes only when a test moves it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Clock"]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now
