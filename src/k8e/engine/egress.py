"""What sessions asked of the network: kept for whoever looks, counted, and written into the event log within bounds.

The substrate tells decisions by sandbox; here they find their session. A decision about a refusal arrives before the
refusal itself reaches the sandbox, so what a command was denied is known when the command has ended.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from k8e.engine.events import EventLog
from k8e.engine.sandbox_watch import hear_for_ever
from k8e.model import Decision, Denial, OwnerId, SandboxId, SessionId, Verdict

__all__ = ["Egress", "EgressCounts", "Ledger"]

_log = logging.getLogger(__name__)

_KEPT: Final = 1000
_DENIALS_TOLD: Final = 20
_ROWS: Final = 200
_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCounts:
    """Since the server started."""

    allowed: int = 0
    denied: int = 0
    closed: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    unclaimed: int = 0
    """Of sandboxes that no session holds."""


@dataclass(slots=True, eq=False)
class Ledger:
    """One session's decisions, the newest ones."""

    owner: OwnerId
    session_id: SessionId
    kept: collections.deque[Decision] = field(default_factory=lambda: collections.deque(maxlen=_KEPT))
    heard: int = 0
    """How many there have been at all; a value of it marks a moment."""
    followers: set[asyncio.Queue[Decision | None]] = field(default_factory=set)
    window_began: float = 0.0
    rows: int = 0
    unwritten: collections.Counter[Verdict] = field(default_factory=collections.Counter)

    def since(self, mark: int) -> list[Decision]:
        """What came after a mark, as far as it is still kept."""
        new = min(self.heard - mark, len(self.kept))
        return list(self.kept)[len(self.kept) - new :]


class Egress:
    """Where decisions go. `hold` and `drop` say which sandbox is whose."""

    def __init__(
        self,
        events: EventLog,
        settle: Callable[[], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settle` returns when all that was decided before is heard."""
        self._events = events
        self._settle = settle
        self._clock = clock
        self._by_sandbox: dict[SandboxId, Ledger] = {}
        self._counts: collections.Counter[str] = collections.Counter()

    def hold(self, sandbox: SandboxId, owner: OwnerId, session_id: SessionId) -> None:
        """From now on this sandbox's decisions are this session's."""
        self._by_sandbox[sandbox] = Ledger(owner=owner, session_id=session_id)

    def drop(self, sandbox: SandboxId) -> None:
        """The session ends, and with it what is kept and whoever follows."""
        ledger = self._by_sandbox.pop(sandbox, None)
        if ledger is not None:
            self._summarise(ledger)
            for follower in ledger.followers:
                _offer(follower, None)

    async def listen(self, decisions: Callable[[], AsyncIterator[Decision]]) -> None:
        """Hear every decision, for ever."""
        await hear_for_ever(decisions, self.heard, _not_heard)

    def heard(self, decision: Decision) -> None:
        """One decision."""
        self._counts[decision.verdict] += decision.count
        self._counts["bytes_sent"] += decision.bytes_sent
        self._counts["bytes_received"] += decision.bytes_received
        ledger = self._by_sandbox.get(decision.sandbox)
        if ledger is None:
            self._counts["unclaimed"] += decision.count
            return
        ledger.heard += 1
        ledger.kept.append(decision)
        for follower in ledger.followers:
            _offer(follower, decision)
        self._write(ledger, decision)

    def mark(self, sandbox: SandboxId) -> int:
        """This moment, for `denials_since`."""
        ledger = self._by_sandbox.get(sandbox)
        return ledger.heard if ledger else 0

    async def denials_since(self, sandbox: SandboxId, mark: int) -> tuple[Denial, ...]:
        """What was denied since then: each host and port once, and not endlessly many."""
        await self._settle()
        ledger = self._by_sandbox.get(sandbox)
        if ledger is None or ledger.heard == mark:
            return ()
        found: dict[tuple[str, int], Denial] = {}
        for decision in ledger.since(mark):
            if decision.verdict is Verdict.DENIED:
                host = decision.name or decision.address
                found.setdefault((host, decision.port), Denial(host, decision.port, decision.reason))
        return tuple(found.values())[:_DENIALS_TOLD]

    async def follow(self, sandbox: SandboxId, *, limit: int = 0, onwards: bool = False) -> AsyncIterator[Decision]:
        """The newest `limit` (0: all that are kept), oldest first; then what comes, until the session ends."""
        ledger = self._by_sandbox.get(sandbox)
        if ledger is None:
            return
        coming: asyncio.Queue[Decision | None] = asyncio.Queue(_KEPT)
        past = list(ledger.kept)
        if onwards:
            ledger.followers.add(coming)
        try:
            for decision in past[-limit:]:
                yield decision
            while onwards and (decision_or_end := await coming.get()) is not None:
                yield decision_or_end
        finally:
            ledger.followers.discard(coming)

    def counts(self) -> EgressCounts:
        return EgressCounts(**{str(name): number for name, number in self._counts.items()})

    def tend(self) -> None:
        """The slow rhythm: say how much was left out where a flood has ended."""
        for ledger in self._by_sandbox.values():
            if ledger.unwritten and self._clock() - ledger.window_began >= _WINDOW_S:
                self._summarise(ledger)

    def _write(self, ledger: Ledger, decision: Decision) -> None:
        now = self._clock()
        if now - ledger.window_began >= _WINDOW_S:
            self._summarise(ledger)
            ledger.window_began, ledger.rows = now, 0
        if ledger.rows >= _ROWS:
            ledger.unwritten[decision.verdict] += decision.count
            return
        ledger.rows += 1
        fields = {"protocol": decision.protocol, "name": decision.name, "address": decision.address}
        fields |= {"rule": decision.rule, "reason": decision.reason}
        numbers = {"port": decision.port, "count": decision.count}
        numbers |= {"bytes_sent": decision.bytes_sent, "bytes_received": decision.bytes_received}
        self._events.add(
            ledger.owner, ledger.session_id, f"egress.{decision.verdict}", decided_at=decision.at, **fields, **numbers
        )

    def _summarise(self, ledger: Ledger) -> None:
        if ledger.unwritten:
            left_out = {str(verdict): number for verdict, number in ledger.unwritten.items()}
            self._events.add(ledger.owner, ledger.session_id, "egress.summary", not_written=left_out)
            ledger.unwritten.clear()


def _not_heard(reason: str) -> None:
    _log.warning("decisions of the network are not heard now", extra={"reason": reason})


def _offer(follower: asyncio.Queue[Decision | None], item: Decision | None) -> None:
    """A follower that does not keep up loses the oldest."""
    if follower.full():
        follower.get_nowait()
    follower.put_nowait(item)
