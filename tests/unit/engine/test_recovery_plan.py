"""Whatever a crash left, each sandbox gets exactly one fate, and nobody's work is thrown away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.recovery_plan import plan_recovery
from k8e.lifecycle import Phase
from k8e.model import SandboxId

_IDS = [SandboxId(f"sb-{n}") for n in range(6)]
_PHASES = st.sampled_from([Phase.CREATING, Phase.ACTIVE, Phase.FAILED, Phase.TERMINATING])
A, B, C, D, E, F = _IDS


def test_each_kind_of_leftover_gets_its_fate() -> None:
    plan = plan_recovery(
        sessions={A: Phase.FAILED, B: Phase.ACTIVE, C: Phase.ACTIVE, D: Phase.ACTIVE, E: Phase.CREATING},
        mine={B: True, C: False, E: True, F: True},
    )
    assert plan.held == {B}
    assert plan.lost == {A, C, D}
    assert plan.remove == {A, C, D, E, F}


@given(st.dictionaries(st.sampled_from(_IDS), _PHASES), st.dictionaries(st.sampled_from(_IDS), st.booleans()))
def test_every_sandbox_has_one_fate(sessions: dict[SandboxId, Phase], mine: dict[SandboxId, bool]) -> None:
    plan = plan_recovery(sessions=sessions, mine=mine)
    assert not plan.held & plan.remove
    assert set(sessions) | set(mine) == plan.held | plan.remove
    assert all(mine.get(sandbox) for sandbox in plan.held)
    assert plan.lost == {s for s, phase in sessions.items() if phase in (Phase.ACTIVE, Phase.FAILED)} - plan.held
