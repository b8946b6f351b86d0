"""Sessions as the engine keeps them: their names, their time, and callers that leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from k8e.engine.engine import Engine
from k8e.errors import Conflict, InvalidSpec, SandboxFailed
from k8e.model import Claim, Command, Limits, Runtime, SandboxId, SessionSpec, Shell
from k8e.wire.aio import Link
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.restartable_engine import OwnSandboxes, RestartableEngine, Write

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["../x", "a/b", "", " ", "x" * 200, "a\0b", "-x"])
async def test_a_bad_tenant_is_refused_by_name(engine: Engine, name: str) -> None:
    if name:
        with pytest.raises(InvalidSpec, match="tenant"):
            await engine.create_session(OWNER, SessionSpec(tenant=name))


async def test_a_name_cannot_be_taken_twice(cells: CellFactory, engine: Engine) -> None:
    async with cells(Runtime.CONTAINER, session_id="taken"):
        with pytest.raises(Conflict, match="already exists"):
            await engine.create_session(OWNER, SessionSpec(session_id="taken", runtime=Runtime.CONTAINER))


async def test_an_expired_session_is_removed(engine: Engine) -> None:
    view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER, limits=Limits(ttl_s=100)))
    assert 0 < view.expires_at - time.time() <= 100
    # Only now, so that its time is not over before it is handed out.
    await engine.extend_session(OWNER, view.session_id, ttl_s=0.2)
    await _until_gone(engine, view.session_id)


async def test_a_session_is_handed_out_once_however_short_its_time(
    restartable: RestartableEngine, runtime: Runtime
) -> None:
    async with restartable.open(reap_every_s=0.01) as engine:
        written = restartable.at_writing
        others = [await engine.create_session(OWNER, SessionSpec(runtime=runtime)) for _ in range(2)]

        async def slowly(write: Write) -> None:
            """Until others have ended whose time was over later."""
            restartable.at_writing = written
            for other in others:
                await engine.extend_session(OWNER, other.session_id, ttl_s=0.01)
                await _until_gone(engine, other.session_id)
            await write()

        restartable.at_writing = slowly
        view = await engine.create_session(OWNER, SessionSpec(runtime=runtime, limits=Limits(ttl_s=1e-9)))
        await _until_gone(engine, view.session_id)


async def test_an_idle_session_is_removed_but_not_while_it_works(engine: Engine) -> None:
    view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER))
    async with asyncio.TaskGroup() as group:
        command = Command(what=Shell("sleep 3; echo done"))
        busy = group.create_task(engine.exec(OWNER, view.session_id, command), name="busy")
        while engine.get_session(OWNER, view.session_id).idle_at:
            await asyncio.sleep(0)
        # Only now, so that it is never idle for that long before it works.
        await engine.extend_session(OWNER, view.session_id, idle_timeout_s=1.2)
    assert busy.result().stdout == b"done\n"
    await _until_gone(engine, view.session_id)


async def test_an_extended_session_lives_on(engine: Engine) -> None:
    view = await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER, limits=Limits(ttl_s=100)))
    extended = await engine.extend_session(OWNER, view.session_id, ttl_s=500)
    assert extended.expires_at > time.time() + 400
    await engine.destroy_session(OWNER, view.session_id)


async def test_a_caller_that_leaves_during_create_leaves_no_session(engine: Engine) -> None:
    before = {view.session_id for view in engine.list_sessions(OWNER)}
    call = asyncio.ensure_future(engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER)))
    # Its name is taken at the very beginning of what takes long.
    while engine.status().sessions == len(before):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(60):
        while engine.status().sessions != len(before):
            await asyncio.sleep(0.01)
    assert {view.session_id for view in engine.list_sessions(OWNER)} == before


async def _until_gone(engine: Engine, session_id: str) -> None:
    async with asyncio.timeout(60):
        while any(view.session_id == session_id for view in engine.list_sessions(OWNER)):
            await asyncio.sleep(0.01)


class _FirstFails(OwnSandboxes):
    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        if [sandbox] == self.made:
            raise SandboxFailed("configure", "as the test wants it")
        await self._shared.configure(sandbox, claim, link)


async def test_a_session_whose_first_sandbox_failed_is_written_down_with_the_second(
    runtime: Runtime, restartable: RestartableEngine, engine_machine: BareMachine
) -> None:
    restartable.machine = sandboxes = _FirstFails(engine_machine)
    async with restartable.open() as engine:
        spec = SessionSpec(runtime=runtime, env={"WORD": "kept"})
        cell = Cell(engine, (await engine.create_session(OWNER, spec)).session_id)
        assert (await cell.sh("echo $WORD")).stdout == b"kept\n"
    _failed, second = sandboxes.made
    async with restartable.open() as engine:
        assert [(view.session_id, view.sandbox) for view in engine.list_sessions(OWNER)] == [(cell.id, second)]
        assert (await Cell(engine, cell.id).sh("echo $WORD")).stdout == b"kept\n"
