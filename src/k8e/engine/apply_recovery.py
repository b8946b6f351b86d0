"""Applying a recovery plan: reconnect sessions, their runs and terminals, and clear away the rest."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

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
from k8e.model import SandboxId

__all__ = ["recover"]

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Sandboxes that are connected to at a time; one that does not answer takes some ten seconds."""


R = TypeVar("R", RunRecord, TerminalRecord)


async def recover(store: Store, substrate: Substrate, sessions: Sessions, runs: Runs, terminals: Terminals) -> None:
    """Make the world and the store agree again: take back this gateway's sessions, one by one."""
    # All of them: the store is this gateway's alone, also where its name is a new one. Parents come first.
    found = sorted(store.load(SESSIONS), key=lambda stored: stored.record.parent is not None)
    known = {stored.record.sandbox: stored for stored in found}
    mine = await substrate.mine()
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
    await _forget(store, [known[sandbox].record for sandbox in plan.remove - plan.lost if sandbox in known])
    held = await _take_over(store, sessions.gateway, known, {sandbox: mine[sandbox].epoch for sandbox in plan.held})
    by_name: dict[tuple[str, str], Session] = {}
    at_once = asyncio.Semaphore(_AT_ONCE)
    work: list[Coroutine[Any, Any, None]] = []
    for sandbox, stored in known.items():
        if sandbox in held or sandbox in plan.lost:
            box, record = sessions.box(sandbox), held.get(sandbox, stored.record)
            session = _known(record, box, by_name)
            sessions.adopt(session)
            by_name[record.owner, record.session_id] = session
            work.append(_take_back(store, sessions, session, box, at_once, lost=sandbox in plan.lost))
    await _side_by_side(work)
    await sessions.clear_leftovers()
    await _resume(store, runs, terminals, by_name)


async def _take_over(
    store: Store, gateway: str, known: Mapping[SandboxId, Stored[SessionRecord]], epochs: Mapping[SandboxId, int]
) -> dict[SandboxId, SessionRecord]:
    """Become the owner of these, each at its epoch; without those that somebody else has changed since they were read."""
    taken: dict[SandboxId, SessionRecord] = {}

    async def take(sandbox: SandboxId, epoch: int) -> None:
        record = dataclasses.replace(known[sandbox].record, gateway=gateway, epoch=epoch)
        try:
            await store.commit(SESSIONS.put(record, if_version=known[sandbox].version))
        except Conflict as error:
            _log.warning("another gateway has taken over a session", extra={"sandbox": sandbox, "reason": str(error)})
            return
        except StoreFailed as error:
            # A full disk must not keep a server from starting, and the next start finds the same.
            _log.error("a session is taken over unwritten", extra={"sandbox": sandbox, "error": str(error)})
        taken[sandbox] = record

    await _side_by_side(take(sandbox, epoch) for sandbox, epoch in epochs.items())
    return taken


async def _side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """An agent that does not answer must not keep everybody else waiting for the server. Raises: what the first does."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each, name="recover")
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _forget(store: Store, gone: Iterable[SessionRecord]) -> None:
    changes = [
        change
        for record in gone
        for key in [(record.owner, record.session_id)]
        for change in (RUNS.delete_under(*key), TERMINALS.delete_under(*key), SESSIONS.delete(*key))
    ]
    if changes:
        await store.commit(*changes)


def _known(record: SessionRecord, box: Box, by_name: dict[tuple[str, str], Session]) -> Session:
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


async def _take_back(
    store: Store, sessions: Sessions, session: Session, box: Box, at_once: asyncio.Semaphore, *, lost: bool
) -> None:
    if lost:
        if session.phase is not Phase.FAILED:
            await store.commit(*session.enter(Phase.FAILED, detail="its sandbox did not survive"))
        return
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


async def _resume(store: Store, runs: Runs, terminals: Terminals, by_name: dict[tuple[str, str], Session]) -> None:
    of_runs = _by_session(stored.record for stored in store.load(RUNS))
    of_terminals = _by_session(stored.record for stored in store.load(TERMINALS))
    await _side_by_side(
        _resume_in(session, runs, of_runs.get(name, []), terminals, of_terminals.get(name, []))
        for name, session in by_name.items()
    )


def _by_session(records: Iterable[R]) -> dict[tuple[str, str], list[R]]:
    found: dict[tuple[str, str], list[R]] = {}
    for record in records:
        found.setdefault((record.owner, record.session_id), []).append(record)
    return found


async def _resume_in(
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
