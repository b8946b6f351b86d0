"""A session whose end has begun, on every runtime: it takes no more work, and takes along all that is its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8e.engine.boxes import Box
from k8e.engine.engine import Engine
from k8e.engine.store import Change, Store
from k8e.errors import Conflict, InvalidSpec, SandboxFailed, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import Claim, Limits, Runtime, SandboxId, SessionSpec
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio


def _names(engine: Engine) -> set[str]:
    return {view.session_id for view in engine.list_sessions(OWNER)}


@asynccontextmanager
async def _while_its_child_ends(parent: Cell, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The parent's end has begun and waits, for the length of the block, until its only child is removed."""
    child = await parent.engine.run_subagent(OWNER, parent.id)
    destroy, reached, may_go = Box.destroy, asyncio.Event(), asyncio.Event()

    async def wait_first(box: Box) -> None:
        if box.id == child.sandbox:
            reached.set()
            await may_go.wait()
        await destroy(box)

    monkeypatch.setattr(Box, "destroy", wait_first)
    async with asyncio.TaskGroup() as group:
        group.create_task(parent.engine.destroy_session(OWNER, parent.id), name="destroy the parent")
        await reached.wait()
        try:
            yield
        finally:
            may_go.set()


async def test_a_parent_that_ends_gets_no_more_children(
    runtime: Runtime, cells: CellFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(runtime) as parent:
        before = _names(parent.engine) - {parent.id}
        await parent.engine.destroy_session(OWNER, (await parent.engine.run_subagent(OWNER, parent.id)).session_id)
        async with _while_its_child_ends(parent, monkeypatch):
            with pytest.raises(SandboxLost, match="Terminating"):
                await parent.engine.run_subagent(OWNER, parent.id)
        assert _names(parent.engine) == before


async def test_a_session_that_ends_is_neither_extended_nor_used(
    runtime: Runtime, cells: CellFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(runtime) as parent:
        await parent.engine.extend_session(OWNER, parent.id, ttl_s=500)
        assert (await parent.sh("echo used")).stdout == b"used\n"
        async with _while_its_child_ends(parent, monkeypatch):
            with pytest.raises(SandboxLost, match="Terminating"):
                await parent.engine.extend_session(OWNER, parent.id, ttl_s=500)
            with pytest.raises(SandboxLost, match="Terminating"):
                await parent.sh("echo used")
        assert parent.id not in _names(parent.engine)


async def test_a_session_that_could_not_be_ended_can_be_used_and_ended_later(
    runtime: Runtime, cells: CellFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(runtime) as parent:
        child, destroy = await parent.engine.run_subagent(OWNER, parent.id), Box.destroy

        async def fail(box: Box) -> None:
            if box.id == child.sandbox:  # the pool's own come and go meanwhile
                raise SandboxFailed("destroy", "as the test wants it")
            await destroy(box)

        with monkeypatch.context() as patched:
            patched.setattr(Box, "destroy", fail)
            with pytest.raises(SandboxFailed, match="tried again"):
                await parent.engine.destroy_session(OWNER, parent.id)
        assert parent.engine.get_session(OWNER, parent.id).phase is Phase.ACTIVE
        assert (await parent.sh("echo used")).stdout == b"used\n"
        await parent.engine.destroy_session(OWNER, parent.id)


async def test_a_session_destroyed_in_the_moment_it_comes_to_be_leaves_no_sandbox(
    runtime: Runtime, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, sandboxes, written, may_go = Store.commit, list[SandboxId](), asyncio.Event(), asyncio.Event()

    async def wait_when_active(store: Store, *changes: Change) -> None:
        await commit(store, *changes)
        for change in changes:
            if change.sql.startswith("INSERT INTO sessions"):
                sandboxes.append(SandboxId(str(change.values[2])))
            if change.sql.startswith("UPDATE sessions SET phase") and change.values[0] is Phase.ACTIVE:
                written.set()
                await may_go.wait()

    monkeypatch.setattr(Store, "commit", wait_when_active)
    spec = SessionSpec(runtime=runtime, session_id="short-lived", limits=Limits(cpus=0.5))
    creating = asyncio.ensure_future(engine.create_session(OWNER, spec))
    await written.wait()
    assert sandboxes[0] in await engine._substrate.survivors(), "the control"
    await engine.destroy_session(OWNER, "short-lived")
    may_go.set()
    with pytest.raises(SandboxLost, match="Gone"):
        await creating
    assert len(sandboxes) == 1, "no other sandbox is tried for a session that is gone"
    assert sandboxes[0] not in await engine._substrate.survivors()


async def test_the_name_of_a_session_that_could_not_be_made_is_free_when_nothing_of_it_is_left(
    runtime: Runtime, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure, destroy, refused = Box.configure, Box.destroy, set[SandboxId]()
    removing, may_go = asyncio.Event(), asyncio.Event()

    async def refuse_workspaces(box: Box, claim: Claim) -> None:
        if claim.workspace is None:
            return await configure(box, claim)
        refused.add(box.id)
        raise InvalidSpec("as the test wants it")

    async def wait_first(box: Box) -> None:
        if box.id in refused:
            removing.set()
            await may_go.wait()
        await destroy(box)

    spec = SessionSpec(runtime=runtime, session_id="same-again", tenant="same-again")
    with monkeypatch.context() as patched:
        patched.setattr(Box, "configure", refuse_workspaces)
        patched.setattr(Box, "destroy", wait_first)
        creating = asyncio.ensure_future(engine.create_session(OWNER, spec))
        await removing.wait()
        with pytest.raises(Conflict, match="already exists"):
            await engine.create_session(OWNER, spec)
        may_go.set()
        with pytest.raises(InvalidSpec, match="as the test wants it"):
            await creating
    await engine.create_session(OWNER, spec)
    assert engine._store.rows("SELECT * FROM sessions WHERE session_id='same-again'")
    await engine.destroy_session(OWNER, "same-again")
    await engine.delete_workspace(OWNER, "same-again")


async def test_a_transcript_that_is_asked_for_at_the_very_end_leaves_no_directory(
    runtime: Runtime, cells: CellFactory, engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(runtime) as cell:
        await cell.sh("echo kept")
        directory = engine_dir / "sessions" / str(cell.engine.get_session(OWNER, cell.id).sandbox)
        assert directory.is_dir(), "the control"
        commit, seen = Store.commit, list[str]()

        async def look_before_it_is_forgotten(store: Store, *changes: Change) -> None:
            if any(change.sql.startswith("DELETE FROM sessions") and cell.id in change.values for change in changes):
                seen.append(cell.engine.transcript(OWNER, cell.id).output)
            await commit(store, *changes)

        monkeypatch.setattr(Store, "commit", look_before_it_is_forgotten)
        assert "kept" in cell.engine.transcript(OWNER, cell.id).output
        await cell.engine.destroy_session(OWNER, cell.id)
        assert seen == [""]
        assert not directory.exists()


async def test_a_session_that_could_not_be_removed_is_removed_later(
    runtime: Runtime, cells: CellFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(runtime) as cell:
        sandbox, destroy, failing = cell.engine.get_session(OWNER, cell.id).sandbox, Box.destroy, True

        async def fail_first(box: Box) -> None:
            if failing and box.id == sandbox:  # the pool's own come and go meanwhile
                raise SandboxFailed("remove it", "the test says no")
            await destroy(box)

        monkeypatch.setattr(Box, "destroy", fail_first)
        with pytest.raises(SandboxFailed, match="it will be tried again"):
            await cell.engine.destroy_session(OWNER, cell.id)
        failing = False
        cell.engine._sessions.reap(time.time())  # the control: not at once
        await asyncio.sleep(0)
        assert cell.id in _names(cell.engine)
        cell.engine._sessions.reap(time.time() + 60)
        async with asyncio.timeout(60):
            while cell.id in _names(cell.engine):
                await asyncio.sleep(0.01)
