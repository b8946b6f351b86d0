"""Token buckets: how fast somebody may go on asking, counted apart for each, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Bucket", "Buckets"]

_MOST = 10_000


@dataclass(slots=True)
class Bucket:
    """A token bucket that is told the time."""

    per_s: float
    burst: float
    level: float
    at: float

    def take(self, now: float) -> float:
        """Zero when a token was taken, else the seconds until there is one."""
        self.level = min(self.burst, self.level + (now - self.at) * self.per_s)
        self.at = now
        if self.level >= 1:
            self.level -= 1
            return 0.0
        return (1 - self.level) / self.per_s


class Buckets:
    """One bucket for each name that asks."""

    def __init__(self, *, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._by_name: dict[str, Bucket] = {}

    def take(self, name: str) -> float:
        """Zero when there was a token, else the seconds until there is one."""
        now = self._clock()
        bucket = self._by_name.pop(name, None) or Bucket(self._per_s, self._burst, self._burst, now)
        # Re-inserting keeps the dictionary in order of use, so the one dropped is the longest quiet and thus full.
        self._by_name[name] = bucket
        if len(self._by_name) > _MOST:
            self._by_name.pop(next(iter(self._by_name)))
        return bucket.take(now)
