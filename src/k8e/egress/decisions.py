"""Decisions on their way out: the first of its kind at once, equal ones within the next second as one with a count.

Denials are told one by one while there are few: each may be of another command, whose caller is to hear of it.

A sandbox that makes up new names or addresses all the time fills its own allowance, not its owner's log.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import replace

from k8e.model import Decision, SandboxId, Verdict

__all__ = ["KINDS_PER_S", "WINDOW_S", "Collector"]

WINDOW_S = 1.0
KINDS_PER_S = 200
"""Different decisions of one sandbox told in one window; the rest become one."""

_Kind = tuple[object, ...]


class Collector:
    """Whoever owns it calls `flush` when `add` said that a window has begun, one window later."""

    def __init__(self, tell: Callable[[Decision], None]) -> None:
        self._tell = tell
        self._told: collections.Counter[SandboxId] = collections.Counter()
        self._open: dict[SandboxId, dict[_Kind, Decision | None]] = {}
        """By sandbox and kind: what came after the one that was told."""

    def add(self, decision: Decision) -> bool:
        """Tell or keep it; whether a window has begun with it."""
        begins = not self._open
        kinds = self._open.setdefault(decision.sandbox, {})
        kind = _kind(decision)
        if decision.verdict is Verdict.DENIED and self._told[decision.sandbox] < KINDS_PER_S:
            self._told[decision.sandbox] += 1
            kinds.setdefault(kind, None)
            self._tell(decision)
            return begins
        if kind not in kinds and max(len(kinds), self._told[decision.sandbox]) >= KINDS_PER_S:
            kind, decision = ("more", decision.verdict), _anonymous(decision)
            kinds.setdefault(kind, None)
        elif kind not in kinds:
            kinds[kind] = None
            self._tell(decision)
            return begins
        kept = kinds[kind]
        kinds[kind] = decision if kept is None else _sum(kept, decision)
        return begins

    def flush(self) -> None:
        """Tell what was kept and begin anew."""
        kept, self._open = self._open, {}
        self._told.clear()
        for kinds in kept.values():
            for decision in kinds.values():
                if decision is not None:
                    self._tell(decision)


def _kind(decision: Decision) -> _Kind:
    return (
        decision.verdict,
        decision.protocol,
        decision.name,
        decision.address,
        decision.port,
        decision.rule,
        decision.reason,
    )


def _anonymous(decision: Decision) -> Decision:
    return replace(decision, name="", address="", port=0, rule="", reason="one of many different ones in one second")


def _sum(one: Decision, other: Decision) -> Decision:
    return replace(
        other,
        count=one.count + other.count,
        bytes_sent=one.bytes_sent + other.bytes_sent,
        bytes_received=one.bytes_received + other.bytes_received,
    )
