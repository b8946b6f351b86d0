"""One line of the result: what was measured, what it is measured against, and whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass

from bench.series import Series

__all__ = ["Row", "at_least", "extra", "no_more_than", "ratio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    ours: Series | None = None
    theirs: Series | None = None
    beside: str = ""
    """What `theirs` is."""
    value: float
    """The figure that the bound is for."""
    unit: str = "×"
    bound: float | None = None
    """None: shown, not judged."""
    is_floor: bool = False
    """Whether the bound is the least, not the most, that the value may be."""
    note: str = ""

    @property
    def load(self) -> float | None:
        """How much of the bound is used up; up to 1 is good."""
        if self.bound is None:
            return None
        return self.bound / self.value if self.is_floor else self.value / self.bound

    @property
    def is_met(self) -> bool | None:
        return None if self.load is None else self.load <= 1


def ratio(name: str, ours: Series, theirs: Series, *, beside: str, bound: float | None, note: str = "") -> Row:
    """Median over median."""
    return Row(
        name=name, ours=ours, theirs=theirs, beside=beside, value=ours.median / theirs.median, bound=bound, note=note
    )


def no_more_than(name: str, value: float, bound: float, *, unit: str, note: str = "") -> Row:
    return Row(name=name, value=value, bound=bound, unit=unit, note=note)


def at_least(name: str, ours: Series, bound: float, *, theirs: Series, beside: str, note: str = "") -> Row:
    return Row(
        name=name,
        ours=ours,
        theirs=theirs,
        beside=beside,
        value=ours.median,
        unit=ours.unit,
        bound=bound,
        is_floor=True,
        note=note,
    )


def extra(name: str, ours: Series, *, note: str = "") -> Row:
    """A figure without a target."""
    return Row(name=name, ours=ours, value=ours.median, unit=ours.unit, note=note)
