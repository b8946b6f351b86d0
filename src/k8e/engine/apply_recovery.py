"""Applying a recovery plan: reconnect sessions, their runs and terminals, and clear away the rest."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from k8e.engine.boxes import Box
from k8e.engine.records import RUNS, SESSIONS, TERMINALS, RunRecord, SessionRecord, TerminalRecord
from k8e.engine.recovery_plan import plan_recovery
from k8e.engine.runs import Runs
from k8e.engine.session import NEVER, Session
from k8e.engine.sessions import Sessions
from k8e.engine.store import Store, Stored
from k8e.engine.substrate import Substrate
from k8e.engine.terminals import Terminals
from k8e.errors import Conflict, K8eError, StoreFailed
from k8e.lifecycle import Phase
from k8e.model import OwnerId, SandboxId, SessionId

__all__ = ["Kept", "read_kept", "recover"]

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Sandboxes that are connected to at a time; one that does not answer takes some ten seconds."""


R = TypeVar("R", RunRecord, TerminalRecord)
Name: TypeAlias = tuple[OwnerId, SessionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the last server has left written down of sessions."""

    sessions: Sequence[Stored[SessionRecord]]
    runs: Mapping[Name, Sequence[RunRecord]]
    terminals: Mapping[Name, Sequence[TerminalRecord]]


def read_kept(store: Store) -> Kept:
    """All of it, read before anything is changed: what is damaged stops a start that has done nothing yet.

    Raises: StoreFailed.
    """
    return Kept(
        # All of them: the store is this gateway's alone, also where its name is a new one. Parents come first.
        sessions=sorted(store.load(SESSIONS), key=lambda stored: stored.record.parent is not None),
        runs=_by_session(stored.record for stored in store.load(RUNS)),
        terminals=_by_session(stored.record for stored in store.load(TERMINALS)),
    )


async def recover(
    kept: Kept, store: Store, substrate: Substrate, sessions: Sessions, runs: Runs, terminals: Terminals
) -> None:
    """Make the world and the store agree again: take back this gateway's sessions, one by one.

    A session that another gateway holds by now, or whose record somebody has changed since it was read, is left to them.
    """
    mine, elsewhere = await substrate.mine(), await substrate.elsewhere()
    known = {each.record.sandbox: each for each in kept.sessions if each.record.sandbox not in elsewhere}
    plan = plan_recovery(
        sessions={sandbox: stored.record.phase for sandbox, stored in known.items()},
        mine={sandbox: seen.alive for sandbox, seen in mine.items()},
    )
    _log.info("recovering", extra={"held": len(plan.held), "lost": len(plan.lost), "remove": len(plan.remove)})
    for sandbox in plan.remove:
        try:
            await substrate.release(sandbox)
        except K8eError as error:
            # Whatever is left of it is found again by the next start; this one has work to do.
            _log.error("cannot remove a sandbox", extra={"sandbox": sandbox, "error": str(error)})
    await _side_by_side(_forget(store, known[each]) for each in (plan.remove - plan.lost) & known.keys())
    wanted = {each: _taken_over(known[each].record, sessions.gateway, mine[each].epoch) for each in plan.held}
    wanted |= {each: _failed(known[each].record) for each in plan.lost}
    ours = await _write(store, known, wanted)
    by_name: dict[Name, Session] = {}
    at_once = asyncio.Semaphore(_AT_ONCE)
    work: list[Coroutine[Any, Any, None]] = []
    for sandbox in known:
        if sandbox in ours:
            box, record = sessions.box(sandbox), wanted[sandbox]
            session = _known(record, box, by_name)
            sessions.adopt(session)
            by_name[record.owner, record.session_id] = session
            if sandbox in plan.held:
                work.append(_take_back(sessions, session, box, at_once))
    await _side_by_side(work)
    await sessions.clear_leftovers()
    await _side_by_side(
        _resume(session, runs, kept.runs.get(name, ()), terminals, kept.terminals.get(name, ()))
        for name, session in by_name.items()
    )


def _taken_over(record: SessionRecord, gateway: str, epoch: int) -> SessionRecord:
    return dataclasses.replace(record, gateway=gateway, epoch=epoch)


def _failed(record: SessionRecord) -> SessionRecord:
    """Its owner shall hear of it; one that had failed before keeps its reason."""
    if record.phase is Phase.FAILED:
        return record
    return dataclasses.replace(record, phase=Phase.FAILED, detail="its sandbox did not survive")


async def _write(
    store: Store, known: Mapping[SandboxId, Stored[SessionRecord]], wanted: Mapping[SandboxId, SessionRecord]
) -> set[SandboxId]:
    """Write these down, and return those that are ours: not what somebody else has changed since it was read."""
    ours: set[SandboxId] = set()

    async def write(sandbox: SandboxId, record: SessionRecord) -> None:
        try:
            if record != known[sandbox].record:
                await store.commit(SESSIONS.put(record, if_version=known[sandbox].version))
        except Conflict as error:
            _log.warning("another gateway has changed a session", extra={"sandbox": sandbox, "reason": str(error)})
            return
        except StoreFailed as error:
            # A full disk must not keep a server from starting, and the next start finds the same.
            _log.error("a session is taken back unwritten", extra={"sandbox": sandbox, "error": str(error)})
        ours.add(sandbox)

    await _side_by_side(write(*each) for each in wanted.items())
    return ours


async def _side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """An agent that does not answer must not keep everybody else waiting for the server. Raises: what the first does."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each, name="recover")
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _forget(store: Store, gone: Stored[SessionRecord]) -> None:
    key = SESSIONS.key(gone.record)
    delete = SESSIONS.delete(*key, if_version=gone.version)
    try:
        await store.commit(RUNS.delete_under(*key), TERMINALS.delete_under(*key), delete)
    except (Conflict, StoreFailed) as error:
        _log.warning("a session is not forgotten", extra={"sandbox": gone.record.sandbox, "reason": str(error)})


def _known(record: SessionRecord, box: Box, by_name: Mapping[Name, Session]) -> Session:
    """A session as it was written down; parents come before their children."""
    return Session(
        owner=record.owner,
        session_id=record.session_id,
        spec=record.spec,
        phase=record.phase,
        created_at=record.created_at,
        expires_at=NEVER if record.expires_at is None else record.expires_at,
        idle_timeout_s=record.idle_timeout_s,
        last_used=record.last_used,
        box=box,
        epoch=record.epoch,
        warm=record.warm,
        workspace=record.workspace,
        parent=by_name.get((record.owner, record.parent)) if record.parent else None,
        detail=record.detail,
        record=record,
    )


async def _take_back(sessions: Sessions, session: Session, box: Box, at_once: asyncio.Semaphore) -> None:
    try:
        # What may be reached is said again: whoever enforces it may have heard less than we have written down.
        async with at_once:
            await box.set_egress(sessions.claim(session).egress)
            await box.connect()
        if session.spec.brokered:
            await sessions.brokering.renew(session.owner, session.spec, box)
    except K8eError as error:
        # It runs, and may be reached later: the next call tries.
        box.out_of_touch = str(error)


def _by_session(records: Iterable[R]) -> dict[Name, list[R]]:
    found: dict[Name, list[R]] = {}
    for record in records:
        found.setdefault((record.owner, record.session_id), []).append(record)
    return found


async def _resume(
    session: Session,
    runs: Runs,
    of_runs: Collection[RunRecord],
    terminals: Terminals,
    of_terminals: Collection[TerminalRecord],
) -> None:
    for run in sorted(of_runs, key=lambda record: record.started_at):
        await runs.resume(session, run)
    for terminal in of_terminals:
        with contextlib.suppress(K8eError):
            await terminals.resume(session, terminal)
