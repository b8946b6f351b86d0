"""A session whose end has begun: it takes no more work, and takes along all that is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from k8e.engine.boxes import Box
from k8e.engine.engine import Engine
from k8e.errors import Conflict, InvalidSpec, SandboxFailed, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import Claim, Limits, Runtime, SandboxId, SessionSpec
from k8e.substrate.machine import Machine
from k8e.wire.aio import Link
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell, CellFactory, open_cell
from tests.support.descriptors import descriptors
from tests.support.restartable_engine import OwnSandboxes, RestartableEngine, Write

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
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    sandboxes, written, may_go = restartable.machine, asyncio.Event(), asyncio.Event()
    spec = SessionSpec(runtime=runtime, session_id="short-lived", limits=Limits(cpus=0.5))
    async with restartable.open() as engine:

        async def wait_when_active(write: Write) -> None:
            is_its_beginning = bool(engine.list_sessions(OWNER, Phase.ACTIVE)) and not written.is_set()
            await write()
            if is_its_beginning:
                written.set()
                await may_go.wait()

        restartable.at_writing = wait_when_active
        creating = asyncio.ensure_future(engine.create_session(OWNER, spec))
        await written.wait()
        assert await sandboxes.survivors() == set(sandboxes.made) != set(), "the control"
        await engine.destroy_session(OWNER, "short-lived")
        may_go.set()
        with pytest.raises(SandboxLost, match="Gone"):
            await creating
        assert len(sandboxes.made) == 1, "no other sandbox is tried for a session that is gone"
        assert not any(map(sandboxes.alive, sandboxes.made))
        assert await sandboxes.survivors() == set()


class _RefusesWorkspaces(OwnSandboxes):
    """Until it is told otherwise; and the sandboxes that it refused stay until they may go."""

    def __init__(self, shared: Machine) -> None:
        super().__init__(shared)
        self.refuses = True
        self.refused = set[SandboxId]()
        self.removing, self.may_go = asyncio.Event(), asyncio.Event()

    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        if self.refuses and claim.workspace is not None:
            self.refused.add(sandbox)
            raise InvalidSpec("as the test wants it")
        await self._shared.configure(sandbox, claim, link)

    async def destroy(self, sandbox: SandboxId) -> None:
        if sandbox in self.refused:
            self.removing.set()
            await self.may_go.wait()
        await self._shared.destroy(sandbox)


async def test_the_name_of_a_session_that_could_not_be_made_is_free_when_nothing_of_it_is_left(
    runtime: Runtime, restartable: RestartableEngine, engine_machine: BareMachine
) -> None:
    restartable.machine = refusing = _RefusesWorkspaces(engine_machine)
    spec = SessionSpec(runtime=runtime, session_id="same-again", tenant="same-again")
    async with restartable.open() as engine:
        creating = asyncio.ensure_future(engine.create_session(OWNER, spec))
        await refusing.removing.wait()
        with pytest.raises(Conflict, match="already exists"):
            await engine.create_session(OWNER, spec)
        refusing.refuses = False
        refusing.may_go.set()
        with pytest.raises(InvalidSpec, match="as the test wants it"):
            await creating
        made = await engine.create_session(OWNER, spec)
    async with restartable.open() as engine:
        known = engine.get_session(OWNER, "same-again")
        assert (known.phase, known.sandbox) == (Phase.ACTIVE, made.sandbox)
        await engine.destroy_session(OWNER, "same-again")
        await engine.delete_workspace(OWNER, "same-again")


async def test_a_transcript_that_is_asked_for_at_the_very_end_leaves_no_directory(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine, open_cell(engine, runtime) as cell:
        await cell.sh("echo kept")
        directory, seen = restartable.kept(cell), list[str]()
        assert directory.is_dir(), "the control"

        async def look_before_it_is_forgotten(write: Write) -> None:
            if not directory.exists():
                seen.append((await engine.transcript(OWNER, cell.id)).output)
            await write()

        restartable.at_writing = look_before_it_is_forgotten
        assert "kept" in (await engine.transcript(OWNER, cell.id)).output
        await engine.destroy_session(OWNER, cell.id)
        assert set(seen) == {""}
        assert not directory.exists()


async def test_a_session_that_could_not_be_removed_is_removed_later(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    again_after, destroy, tried, is_failing = (
        "k8e.engine.sessions._AGAIN_S",
        Box.destroy,
        list[SandboxId | None](),
        True,
    )

    async def fail_first(box: Box) -> None:
        tried.append(box.id)
        if is_failing and box.id == sandbox:
            raise SandboxFailed("remove it", "the test says no")
        await destroy(box)

    async with (
        restartable.open(reap_every_s=0.01) as engine,
        open_cell(engine, Runtime.CONTAINER) as other,
        open_cell(engine, runtime) as cell,
    ):
        sandbox = engine.get_session(OWNER, cell.id).sandbox
        monkeypatch.setattr(Box, "destroy", fail_first)
        monkeypatch.setattr(again_after, 3600.0)
        with pytest.raises(SandboxFailed, match="it will be tried again"):
            await engine.destroy_session(OWNER, cell.id)
        await engine.extend_session(OWNER, other.id, ttl_s=0.01)
        await _until_gone(other)
        assert tried.count(sandbox) == 1, "the control: not at once, though the reaper has looked"
        monkeypatch.setattr(again_after, 0.0)
        with pytest.raises(SandboxFailed, match="it will be tried again"):
            await engine.destroy_session(OWNER, cell.id)
        assert cell.id in _names(engine)
        is_failing = False
        await _until_gone(cell)


async def _until_gone(cell: Cell) -> None:
    async with asyncio.timeout(60):
        while cell.id in _names(cell.engine):
            await asyncio.sleep(0.01)


async def test_an_engine_that_ends_by_an_error_keeps_no_file_open(restartable: RestartableEngine) -> None:
    def open_files() -> list[str]:
        return [target for _, target in descriptors() if target.startswith(str(restartable.directory))]

    async def begin_and_fail() -> None:
        async with restartable.open():
            assert open_files(), "the control"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await begin_and_fail()
    assert open_files() == []
