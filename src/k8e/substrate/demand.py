"""How many warm sandboxes a pool should hold: pure arithmetic over arrivals and boot time."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Demand", "builds_to_start"]

_WINDOW_S = 10.0
_HEADROOM = 2.0


@dataclass(slots=True)
class Demand:
    """Arrivals per second, forgotten exponentially, and the time a boot takes."""

    boot_s: float = 0.5
    _rate: float = 0.0
    _at: float = 0.0

    def arrived(self, now: float) -> None:
        """Count one claim."""
        self._rate = self.rate(now) + 1 / _WINDOW_S
        self._at = now

    def booted(self, took_s: float) -> None:
        """Learn from a boot; slow ones are believed at once, quick ones slowly."""
        self.boot_s = max(took_s, 0.7 * self.boot_s + 0.3 * took_s)

    def rate(self, now: float) -> float:
        """Claims per second, as of now."""
        return self._rate * math.exp(-(now - self._at) / _WINDOW_S)

    def target(self, now: float, *, low: int, high: int) -> int:
        """Members that should be ready: what may be claimed while a replacement boots."""
        return max(low, min(high, math.ceil(self.rate(now) * self.boot_s * _HEADROOM - 0.5)))


def builds_to_start(*, ready: int, building: int, waiting: int, target: int) -> int:
    """Boots to begin now: one for every waiting claim, and the rest of the target."""
    return max(0, waiting + target - ready - building)
