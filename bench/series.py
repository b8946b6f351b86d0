"""Repeated measurements and what is said of them.

What is compared is measured in turns, one of each, so that a machine that grows slower or faster does so for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Probe", "Series", "interleaved", "timed"]

_WARM_UP = 3

Probe: TypeAlias = Callable[[], float]
"""Does the work once and says how much it took, in milliseconds; what it needs before and after is not counted."""


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


def timed(work: Callable[[], object]) -> Probe:
    """A probe that counts the whole of `work`."""

    def probe() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1000

    return probe


def interleaved(
    probes: Mapping[str, Probe], *, n: int, pause_s: float = 0.0, warm_up: int = _WARM_UP
) -> dict[str, Series]:
    """Every probe n times, in turns; the pause lets what one of them left to do be done before the next."""
    values: dict[str, list[float]] = {name: [] for name in probes}
    for turn in range(n + warm_up):
        for name, probe in probes.items():
            time.sleep(pause_s)
            value = probe()
            if turn >= warm_up:
                values[name].append(value)
    return {name: Series.of(measured) for name, measured in values.items()}
