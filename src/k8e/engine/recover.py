"""Applying a recovery plan: reconnect sessions, their runs and terminals, and clear away the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Coroutine, Iterable
from typing import Any

from k8e.engine.boxes import Box
from k8e.engine.recovery import plan_recovery
from k8e.engine.runs import Runs
from k8e.engine.sandboxes import Sandboxes, forgotten
from k8e.engine.session import Session, spec_from_json
from k8e.engine.sessions import Sessions
from k8e.engine.store import Change, Store
from k8e.engine.substrate import Substrate
from k8e.engine.terminals import Terminals
from k8e.errors import K8eError
from k8e.lifecycle import Phase
from k8e.model import OwnerId, Runtime, SandboxId, SessionId, Template, WorkspaceId

__all__ = ["recover"]

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Sandboxes that are dialled at a time; one that does not answer takes some ten seconds."""


async def recover(
    store: Store, substrate: Substrate, sandboxes: Sandboxes, sessions: Sessions, runs: Runs, terminals: Terminals
) -> None:
    """Make the world and the store agree again."""
    boxes = {SandboxId(row["id"]): row for row in store.rows("SELECT * FROM sandboxes")}
    held = {SandboxId(row["sandbox"]): row for row in store.rows("SELECT * FROM sessions ORDER BY parent != ''")}
    found = await substrate.survivors()
    plan = plan_recovery(
        written={sandbox: Phase(row["phase"]) for sandbox, row in boxes.items()},
        sessions={sandbox: Phase(row["phase"]) for sandbox, row in held.items()},
        found=found,
        alive={sandbox for sandbox in found if substrate.alive(sandbox)},
    )
    _log.info(
        "recovering",
        extra={"held": len(plan.held), "warm": len(plan.warm), "lost": len(plan.lost), "remove": len(plan.remove)},
    )
    for sandbox in plan.remove:
        await substrate.destroy(sandbox)
    await _forget(store, plan.remove - plan.lost, held)
    by_name: dict[tuple[str, str], Session] = {}
    at_once = asyncio.Semaphore(_AT_ONCE)
    work: list[Coroutine[Any, Any, None]] = []
    for sandbox, row in held.items():
        if sandbox in plan.held or sandbox in plan.lost:
            box = sandboxes.known(sandbox, _template(boxes[sandbox]) if sandbox in boxes else _wanted(row))
            session = _known(row, box, by_name)
            sessions.adopt(session)
            by_name[row["owner"], row["session_id"]] = session
            work.append(_take_back(store, sessions, session, box, at_once, lost=sandbox in plan.lost))
    work += [_restock(sandboxes, sandbox, _template(boxes[sandbox]), at_once) for sandbox in plan.warm]
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


async def _forget(store: Store, gone: Iterable[SandboxId], held: dict[SandboxId, sqlite3.Row]) -> None:
    changes = []
    for sandbox in gone:
        changes.append(forgotten(sandbox))
        row = held.get(sandbox)
        if row is not None:
            key = (row["owner"], row["session_id"])
            changes += [
                Change(f"DELETE FROM {table} WHERE owner=? AND session_id=?", key)  # noqa: S608  # names are ours
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
    if not lost:
        box.claim = sessions.claim(session)
        with contextlib.suppress(K8eError):
            # What may be reached is said again: whoever enforces it may have heard less than we have written down.
            async with at_once:
                await box.set_egress(box.claim.egress)
                await box.connect()
            if session.spec.brokered:
                await sessions.brokering.renew(session.owner, session.spec, box)
            return
    if session.phase is not Phase.FAILED:
        await store.commit(session.enter(Phase.FAILED, detail="its sandbox did not survive"))


async def _restock(sandboxes: Sandboxes, sandbox: SandboxId, template: Template, at_once: asyncio.Semaphore) -> None:
    box = sandboxes.known(sandbox, template)
    box.claim = sandboxes.default_claim()
    try:
        async with at_once:
            await box.set_egress(box.claim.egress)
            await box.connect()
    except K8eError:
        await box.destroy()
        return
    sandboxes.pool.adopt(box)


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


def _wanted(session: sqlite3.Row) -> Template:
    return spec_from_json(session["spec"]).template()


def _template(row: sqlite3.Row) -> Template:
    return Template(
        runtime=Runtime(row["runtime"]),
        image=row["image"],
        memory_bytes=row["memory_bytes"],
        disk_bytes=row["disk_bytes"],
    )
