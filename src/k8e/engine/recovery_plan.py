"""After a restart: take back what lives, end what died, and remove what belongs to nobody.

The plan is a pure function of what was written down and what the substrate holds for us; applying it is the engine's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k8e.lifecycle import Phase
from k8e.model import SandboxId

__all__ = ["RecoveryPlan", "plan_recovery"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    held: frozenset[SandboxId]
    """Held by a session and alive: reconnect."""
    lost: frozenset[SandboxId]
    """Held by a session but dead: the session has failed, and its owner shall hear of it."""
    remove: frozenset[SandboxId]
    """Half-built, half-removed, dead, or of no session."""


def plan_recovery(*, sessions: Mapping[SandboxId, Phase], mine: Mapping[SandboxId, bool]) -> RecoveryPlan:
    """Decide for every sandbox that a session has or that the substrate holds for us; `mine` says which of those run."""
    # A session still being created was never told to its caller, so nobody can miss it.
    held = {sandbox for sandbox, phase in sessions.items() if phase in (Phase.ACTIVE, Phase.PAUSED)}
    failed = {sandbox for sandbox, phase in sessions.items() if phase is Phase.FAILED}
    keep = {sandbox for sandbox in held if mine.get(sandbox)}
    lost = (held - keep) | failed
    return RecoveryPlan(
        held=frozenset(keep), lost=frozenset(lost), remove=frozenset((set(mine) | set(sessions)) - keep)
    )
