"""Applying a recovery plan: reconnect sessions, their runs and terminals, and clear away the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Coroutine, Iterable
from typing import Any

from k8e.engine.boxes import Box
from k8e.engine.recovery_plan import plan_recovery
from k8e.engine.runs import Runs
from k8e.engine.session import Session, spec_from_json
from k8e.engine.sessions import Sessions
from k8e.engine.store import Change, Store
from k8e.engine.substrate import Substrate
from k8e.engine.terminals import Terminals
from k8e.errors import K8eError
from k8e.lifecycle import Phase
from k8e.model import OwnerId, SandboxId, SessionId, WorkspaceId

__all__ = ["recover"]

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Sandboxes that are connected to at a time; one that does not answer takes some ten seconds."""


async def recover(store: Store, substrate: Substrate, sessions: Sessions, runs: Runs, terminals: Terminals) -> None:
    """Make the world and the store agree again: take back this gateway's sessions, one by one."""
    # All of them: the store is this gateway's alone, also where its name is a new one.
    rows = store.rows("SELECT * FROM sessions ORDER BY parent != ''")
    held = {SandboxId(row["sandbox"]): row for row in rows}
    mine = await substrate.mine()
    plan = plan_recovery(
        sessions={sandbox: Phase(row["phase"]) for sandbox, row in held.items()},
        mine={sandbox: seen.alive for sandbox, seen in mine.items()},
    )
    _log.info("recovering", extra={"held": len(plan.held), "lost": len(plan.lost), "remove": len(plan.remove)})
    for sandbox in plan.remove:
        try:
            await substrate.release(sandbox)
        except K8eError as error:
            # Whatever is left of it is found again by the next start; this one has work to do.
            _log.error("cannot remove a sandbox", extra={"sandbox": sandbox, "error": str(error)})
    await _forget(store, [held[sandbox] for sandbox in plan.remove - plan.lost if sandbox in held])
    by_name: dict[tuple[str, str], Session] = {}
    at_once = asyncio.Semaphore(_AT_ONCE)
    work: list[Coroutine[Any, Any, None]] = []
    for sandbox, row in held.items():
        if sandbox in plan.held or sandbox in plan.lost:
            box = sessions.box(sandbox)
            session = _known(row, box, by_name)
            if sandbox in plan.held:
                session.epoch = mine[sandbox].epoch
            sessions.adopt(session)
            by_name[row["owner"], row["session_id"]] = session
            work.append(_take_back(store, sessions, session, box, at_once, lost=sandbox in plan.lost))
    await _side_by_side(work)
    await sessions.clear_leftovers()
    await _resume(store, runs, terminals, by_name)


async def _side_by_side(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """An agent that does not answer must not keep everybody else waiting for the server. Raises: what the first does."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each, name="recover")
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def _forget(store: Store, gone: Iterable[sqlite3.Row]) -> None:
    changes = [
        Change(f"DELETE FROM {table} WHERE owner=? AND session_id=?", (row["owner"], row["session_id"]))  # noqa: S608  # names are ours
        for row in gone
        for table in ("runs", "terminals", "sessions")
    ]
    if changes:
        await store.commit(*changes)


def _known(row: sqlite3.Row, box: Box, by_name: dict[tuple[str, str], Session]) -> Session:
    """A session as it was written down; parents come before their children."""
    return Session(
        owner=OwnerId(row["owner"]),
        session_id=SessionId(row["session_id"]),
        spec=spec_from_json(row["spec"]),
        phase=Phase(row["phase"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        idle_timeout_s=row["idle_timeout_s"],
        last_used=row["last_used"],
        box=box,
        warm=bool(row["warm"]),
        workspace=WorkspaceId(row["workspace"]) if row["workspace"] else None,
        parent=by_name.get((row["owner"], row["parent"])),
        detail=row["detail"],
    )


async def _take_back(
    store: Store, sessions: Sessions, session: Session, box: Box, at_once: asyncio.Semaphore, *, lost: bool
) -> None:
    if lost:
        if session.phase is not Phase.FAILED:
            await store.commit(session.enter(Phase.FAILED, detail="its sandbox did not survive"))
        return
    # Not waited for: where it cannot be written now, the next start finds the same.
    store.post(session.adopted(sessions.gateway))
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
    of_runs = _by_session(store.rows("SELECT * FROM runs ORDER BY started_at"))
    of_terminals = _by_session(store.rows("SELECT * FROM terminals"))
    await _side_by_side(
        _resume_in(session, runs, of_runs.get(name, []), terminals, of_terminals.get(name, []))
        for name, session in by_name.items()
    )


def _by_session(rows: Iterable[sqlite3.Row]) -> dict[tuple[str, str], list[sqlite3.Row]]:
    found: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in rows:
        found.setdefault((row["owner"], row["session_id"]), []).append(row)
    return found


async def _resume_in(
    session: Session, runs: Runs, of_runs: list[sqlite3.Row], terminals: Terminals, of_terminals: list[sqlite3.Row]
) -> None:
    for row in of_runs:
        await runs.resume(session, row)
    for row in of_terminals:
        with contextlib.suppress(K8eError):
            await terminals.resume(session, row)
