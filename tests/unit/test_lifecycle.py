"""The state table: complete, and closed against going back."""

from __future__ import annotations

import pytest

from k8e.errors import Conflict
from k8e.lifecycle import TRANSITIONS, Phase, advance


def test_every_phase_has_a_row() -> None:
    assert set(TRANSITIONS) == set(Phase)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.GONE])
def test_everything_can_be_ended(phase: Phase) -> None:
    seen, frontier = set(), {phase}
    while frontier:
        seen |= frontier
        frontier = {after for before in frontier for after in TRANSITIONS[before]} - seen
    assert Phase.GONE in seen


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.PAUSED, Phase.FAILED, Phase.TERMINATING, Phase.GONE])
def test_a_used_sandbox_is_never_warm_again(phase: Phase) -> None:
    with pytest.raises(Conflict):
        advance(phase, Phase.WARM)


def test_a_warm_sandbox_can_be_claimed() -> None:
    assert advance(Phase.WARM, Phase.ACTIVE) is Phase.ACTIVE
