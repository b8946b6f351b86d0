"""How fast one owner may create sessions: counted per owner, so nobody can spend another's share."""

from __future__ import annotations

from collections.abc import Callable

from k8e.buckets import Buckets
from k8e.errors import Exhausted
from k8e.model import OwnerId

__all__ = ["CreateRates"]


class CreateRates:
    """Session creations per owner."""

    def __init__(self, *, per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._buckets = Buckets(per_s=per_s, burst=burst, clock=clock)

    def take(self, owner: OwnerId) -> None:
        """Count one creation. Raises: Exhausted, with the time to wait."""
        wait_s = self._buckets.take(owner)
        if wait_s:
            raise Exhausted(f"too many sessions created at once: retry in {wait_s:.1f} s", retry_after_s=wait_s)
