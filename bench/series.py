"""Repeated measurements and what is said of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Series", "measure", "timed"]

_WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Milliseconds unless the unit says otherwise."""

    median: float
    p95: float
    n: int
    unit: str = "ms"

    @classmethod
    def of(cls, values: list[float], *, unit: str = "ms") -> Series:
        ordered = sorted(values)
        at = min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))
        return cls(median=statistics.median(ordered), p95=ordered[at], n=len(ordered), unit=unit)


def timed(work: Callable[[], object]) -> float:
    """How long it took, in milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def measure(
    work: Callable[[], object], *, n: int, before: Callable[[], object] = lambda: None, warm_up: int = _WARM_UP
) -> Series:
    """Time `work` n times; `before` is not counted."""
    values = []
    for turn in range(n + warm_up):
        before()
        value = timed(work)
        if turn >= warm_up:
            values.append(value)
    return Series.of(values)
