"""What one owner may hold and how fast it may ask: counted per owner, so nobody can spend another's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k8e.errors import Exhausted
from k8e.model import OwnerId

__all__ = ["Bucket", "CreateRates"]

_MAX_OWNERS = 10_000


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


class CreateRates:
    """Session creations per owner."""

    def __init__(self, *, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._buckets: dict[OwnerId, Bucket] = {}

    def take(self, owner: OwnerId) -> None:
        """Count one creation. Raises: Exhausted, with the time to wait."""
        now = self._clock()
        bucket = self._buckets.pop(owner, None) or Bucket(self._per_s, self._burst, self._burst, now)
        # Re-inserting keeps the dictionary in order of use, so the one dropped is the longest quiet and thus full.
        self._buckets[owner] = bucket
        if len(self._buckets) > _MAX_OWNERS:
            self._buckets.pop(next(iter(self._buckets)))
        wait_s = bucket.take(now)
        if wait_s:
            raise Exhausted(f"too many sessions created at once: retry in {wait_s:.1f} s", retry_after_s=wait_s)
