"""Whatever a crash left, each sandbox gets exactly one fate, and nobody's work is thrown away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.recovery import plan_recovery
from k8e.lifecycle import Phase
from k8e.model import SandboxId

_IDS = [SandboxId(f"sb-{n}") for n in range(6)]
_PHASES = st.sampled_from([Phase.CREATING, Phase.WARM, Phase.ACTIVE, Phase.TERMINATING])
_SESSION_PHASES = st.sampled_from([Phase.CREATING, Phase.ACTIVE, Phase.FAILED, Phase.TERMINATING])
A, B, C, D, E, F = _IDS


def test_each_kind_of_leftover_gets_its_fate() -> None:
    plan = plan_recovery(
        written={A: Phase.WARM, B: Phase.ACTIVE, C: Phase.ACTIVE, D: Phase.CREATING, E: Phase.ACTIVE},
        sessions={B: Phase.ACTIVE, C: Phase.ACTIVE, E: Phase.CREATING},
        found={A, B, D, E, F},
        alive={A, B, D, E, F},
    )
    assert plan.warm == {A}
    assert plan.held == {B}
    assert plan.lost == {C}
    assert plan.remove == {C, D, E, F}


def test_a_claimed_sandbox_is_never_put_back_into_the_pool() -> None:
    plan = plan_recovery(written={A: Phase.WARM}, sessions={A: Phase.CREATING}, found={A}, alive={A})
    assert plan.warm == frozenset()
    assert plan.remove == {A}


@given(
    st.dictionaries(st.sampled_from(_IDS), _PHASES),
    st.dictionaries(st.sampled_from(_IDS), _SESSION_PHASES),
    st.sets(st.sampled_from(_IDS)),
    st.sets(st.sampled_from(_IDS)),
)
def test_every_sandbox_has_one_fate(
    written: dict[SandboxId, Phase], sessions: dict[SandboxId, Phase], found: set[SandboxId], alive: set[SandboxId]
) -> None:
    plan = plan_recovery(written=written, sessions=sessions, found=found, alive=alive & found)
    kept = plan.warm | plan.held
    assert not kept & plan.remove
    assert not plan.warm & plan.held
    assert set(written) | found <= kept | plan.remove
    assert kept <= alive & found
    assert plan.lost == {s for s, phase in sessions.items() if phase in (Phase.ACTIVE, Phase.FAILED)} - plan.held
