"""How fast one owner may ask, whichever door, connection, key or tenant it asks through; looking and doing apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from k8e.buckets import Buckets
from k8e.doors.service.call import Call
from k8e.doors.service.naming import LOOKS, may_stop
from k8e.errors import Exhausted

__all__ = ["READS", "Rates"]

READS = LOOKS | {"ReadFile", "ReadStream", "SnapshotGet"}
BURST_S = 2.0
"""A burst may take as much at once as this many seconds give."""


class Rates:
    """A step of the edge. Zero per second is no limit."""

    def __init__(self, *, writes_per_s: float, reads_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._writes = _buckets(writes_per_s, clock)
        self._reads = _buckets(reads_per_s, clock)

    @contextmanager
    def __call__(self, name: str, call: Call, request: object) -> Iterator[None]:
        """Raises: Exhausted, with the time to wait."""
        # The caller's own share, also while it speaks for somebody else: nobody can spend another's.
        self.take(name, call.caller.owner, request)
        yield

    def take(self, name: str, owner: str, request: object = None) -> None:
        is_reading = name in READS and not may_stop(request)
        kind, buckets = ("reading", self._reads) if is_reading else ("changing", self._writes)
        wait_s = buckets.take(owner) if buckets else 0.0
        if wait_s:
            raise Exhausted(f"too many {kind} calls at once: retry in {wait_s:.3f} s", retry_after_s=wait_s)


def _buckets(per_s: float, clock: Callable[[], float]) -> Buckets | None:
    return Buckets(per_s=per_s, burst=max(per_s * BURST_S, 1.0), clock=clock) if per_s > 0 else None
