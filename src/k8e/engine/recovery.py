"""After a restart: take back what lives, end what died, and remove what belongs to nobody.

The plan is a pure function of what was written down and what is found alive; applying it is the engine's work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from k8e.lifecycle import Phase
from k8e.model import SandboxId

__all__ = ["RecoveryPlan", "plan_recovery"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    warm: frozenset[SandboxId]
    """Unclaimed and alive: back to the pool."""
    held: frozenset[SandboxId]
    """Held by a session and alive: reconnect."""
    lost: frozenset[SandboxId]
    """Held by a session but dead: the session has failed, and its owner shall hear of it."""
    remove: frozenset[SandboxId]
    """Half-built, half-removed, dead, or unknown to us."""


def plan_recovery(
    *,
    written: Mapping[SandboxId, Phase],
    sessions: Mapping[SandboxId, Phase],
    found: Collection[SandboxId],
    alive: Collection[SandboxId],
) -> RecoveryPlan:
    """Decide for every sandbox that is written down or found."""
    # A session still being created was never told to its caller, so nobody can miss it.
    held = {sandbox for sandbox, phase in sessions.items() if phase in (Phase.ACTIVE, Phase.PAUSED)}
    failed = {sandbox for sandbox, phase in sessions.items() if phase is Phase.FAILED}
    keep = {sandbox for sandbox in held if sandbox in alive}
    lost = (held - keep) | failed
    warm = {
        sandbox
        for sandbox, phase in written.items()
        if phase is Phase.WARM and sandbox in alive and sandbox not in sessions
    }
    remove = (set(found) | set(written)) - keep - warm
    return RecoveryPlan(warm=frozenset(warm), held=frozenset(keep), lost=frozenset(lost), remove=frozenset(remove))
