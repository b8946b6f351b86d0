"""A quota of audit records per caller and minute; what exceeds it is counted and written as one summary record.

The trail has a bounded size: without a quota one caller could rotate everybody else's records out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from k8e.doors.service.naming import Names

__all__ = ["SEVERAL", "WINDOW_S", "Cancellable", "Later", "RecordQuota"]

WINDOW_S = 60.0
_KINDS = 32
"""Of one caller, in one window; more are counted together."""
_CALLERS_KINDS = 4096
"""Of all callers; the rest is counted together, whoever it was."""
SEVERAL = "several"


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Cancellable]
Kind = tuple[str, str, str]
"""Whose, which call, which outcome."""


@dataclass(slots=True)
class _Count:
    seen: int = 0
    untold: int = 0
    first: float = 0.0
    last: float = 0.0
    about: Names = field(default_factory=dict)


class RecordQuota:
    def __init__(
        self, *, in_full: int, write: Callable[[Names], None], clock: Callable[[], float], later: Later
    ) -> None:
        """`in_full` of a kind are written as they are; `write` gets what is told of the others."""
        self._in_full = in_full
        self._write = write
        self._clock = clock
        self._later = later
        self._counts: dict[Kind, _Count] = {}
        self._kinds: Counter[str] = Counter()
        self._began = 0.0
        self._timer: Cancellable | None = None

    def take(self, kind: Kind, about: Names) -> bool:
        """Whether one more of this kind is to be written in full; else it is counted, and told at the window's end."""
        now = self._clock()
        if not 0 <= now - self._began < WINDOW_S:
            self.tell()
            self._began = now
        count = self._count(kind)
        count.seen += 1
        if count.seen <= self._in_full:
            return True
        if not count.untold:
            count.first, count.about = now, about
        count.untold, count.last = count.untold + 1, now
        if self._timer is None:
            self._timer = self._later(WINDOW_S, self.tell)
        return False

    def tell(self) -> None:
        """Write down what was counted, and begin anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        self._kinds.clear()
        for (whose, rpc, outcome), count in counts.items():
            if count.untold:
                told: Names = {"identity": whose, "rpc": rpc, "outcome": outcome, "not_recorded": count.untold}
                self._write({**count.about, **told, "time": round(count.first, 3), "until": round(count.last, 3)})

    def _count(self, kind: Kind) -> _Count:
        known = self._counts.get(kind)
        if known is not None:
            return known
        whose = kind[0]
        if self._kinds[whose] >= _KINDS:
            kind = (whose, SEVERAL, SEVERAL)
        if len(self._counts) >= _CALLERS_KINDS and kind not in self._counts:
            kind = (SEVERAL, SEVERAL, SEVERAL)
        if kind not in self._counts:
            self._kinds[whose] += 1
        return self._counts.setdefault(kind, _Count())
