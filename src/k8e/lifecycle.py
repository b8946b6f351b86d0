"""The life of a sandbox and of the session that holds it, as one table.

All state changes go through `advance`; the engine writes the new phase down before anybody can see it.
This file knows neither the store nor the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from k8e.errors import Conflict

__all__ = ["TRANSITIONS", "Phase", "advance"]


class Phase(StrEnum):
    """Where a sandbox or a session is in its life. The values are the words clients see."""

    CREATING = "Creating"
    WARM = "Warm"
    ACTIVE = "Active"
    PAUSED = "Paused"
    TERMINATING = "Terminating"
    GONE = "Gone"
    FAILED = "Failed"


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.CREATING: frozenset({Phase.WARM, Phase.ACTIVE, Phase.FAILED, Phase.TERMINATING}),
        Phase.WARM: frozenset({Phase.ACTIVE, Phase.TERMINATING, Phase.FAILED}),
        # Never back to WARM: a used sandbox is destroyed, not recycled.
        Phase.ACTIVE: frozenset({Phase.PAUSED, Phase.TERMINATING, Phase.FAILED}),
        Phase.PAUSED: frozenset({Phase.ACTIVE, Phase.TERMINATING, Phase.FAILED}),
        Phase.FAILED: frozenset({Phase.TERMINATING}),
        Phase.TERMINATING: frozenset({Phase.GONE}),
        Phase.GONE: frozenset(),
    }
)


def advance(phase: Phase, to: Phase) -> Phase:
    """The next phase, or Conflict when the table has no such step."""
    if to not in TRANSITIONS[phase]:
        raise Conflict(f"cannot go from {phase} to {to}")
    return to
