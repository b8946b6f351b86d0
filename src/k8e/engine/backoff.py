"""Exponential back-off for dialling a sandbox's agent: at once after a link that lasted, ever later after short ones.

Hostile code inside a sandbox can accept every connection and close it again. With these defaults that costs the server ten
dials in the first five seconds and one every five seconds from then on, however many calls need the link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["DEFAULT_BACKOFF", "Backoff", "BackoffSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings:
    first_s: float = 0.01
    """Between the first two dials; doubled for each further link that does not last. Shorter than anybody notices."""
    most_s: float = 5.0
    """Where the pause gets this long nobody waits for it: until it is over the agent counts as out of reach."""
    steady_s: float = 1.0
    """A link that lives this long is a good one, so that even an agent that ends each of them costs one dial a second."""


DEFAULT_BACKOFF = BackoffSettings()


class Backoff:
    """The dials of one sandbox since the last link that lasted."""

    def __init__(self, settings: BackoffSettings = DEFAULT_BACKOFF) -> None:
        self._settings = settings
        self._dialled_at = -math.inf
        self.failures = 0

    def dialled(self, now: float) -> None:
        """Counts as in vain until its link has lasted."""
        self._dialled_at = now
        self.failures += 1

    def lost(self, now: float) -> None:
        if now - self._dialled_at >= self._settings.steady_s:
            self.failures = 0

    def wait_s(self, now: float) -> float:
        """How long until the next dial may be made."""
        return max(0.0, self._dialled_at + self._pause_s() - now)

    def is_too_soon(self, now: float) -> bool:
        """Whether that is longer than anybody should wait for it."""
        return self._pause_s() >= self._settings.most_s and self.wait_s(now) > 0

    def _pause_s(self) -> float:
        if not self.failures:
            return 0.0
        return min(self._settings.most_s, math.ldexp(self._settings.first_s, min(self.failures - 1, 64)))
