"""What one owner may hold: each refusal says what to do, and holds nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, PoolSettings, Quotas
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import Command, Limits, OwnerId, Runtime, SessionSpec, Shell
from k8e.setup.provision import Provisioned
from tests.support.cells import OWNER
from tests.support.engines import substrate_for

pytestmark = pytest.mark.anyio

OTHER = OwnerId("uid:4711")
SPEC = SessionSpec(runtime=Runtime.CONTAINER)
SLEEP = Command(what=Shell("sleep 600"), timeout_s=0)


@pytest.fixture
async def strict(host: Provisioned, data_dir: Path) -> AsyncIterator[Engine]:
    quotas = Quotas(sessions=2, runs_per_session=1, terminals_per_session=1, execs_per_session=2)
    settings = EngineSettings(data_dir=data_dir / "engine", pool=PoolSettings(min=0, max=0), quotas=quotas)
    async with Engine.open(settings, substrate_for(data_dir, host)) as engine:
        yield engine
        await engine.destroy_all()


async def test_sessions_are_counted_with_their_sub_agents_and_the_refusal_says_until_when(strict: Engine) -> None:
    soon = SessionSpec(runtime=Runtime.CONTAINER, limits=Limits(ttl_s=1000, idle_timeout_s=0))
    first = await strict.create_session(OWNER, soon)
    child = await strict.run_subagent(OWNER, first.session_id)
    for refused in (strict.create_session(OWNER, SPEC), strict.run_subagent(OWNER, first.session_id)):
        with pytest.raises(Exhausted, match=r"already have 2 sessions: destroy one first, or retry in \d+ s") as caught:
            await refused
        assert caught.value.retry_after_s is not None
        assert 0 < caught.value.retry_after_s <= 1000
    tenant = SessionSpec(runtime=Runtime.CONTAINER, tenant="another")
    with pytest.raises(Exhausted):
        await strict.create_session(OWNER, tenant)
    await strict.create_session(OTHER, SPEC)
    await strict.destroy_session(OWNER, child.session_id)
    await strict.create_session(OWNER, SPEC)


async def test_those_that_are_started_at_once_are_counted_too(strict: Engine) -> None:
    here, there = [(await strict.create_session(OWNER, SPEC)).session_id for _ in range(2)]

    async def is_refused(started: Coroutine[Any, Any, object]) -> bool:
        try:
            await started
        except Exhausted:
            return True
        return False

    async def refused(start: Callable[[], Coroutine[Any, Any, object]]) -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(is_refused(start()), name="start") for _ in range(3)]
        return sum(task.result() for task in tasks)

    assert await refused(lambda: strict.create_terminal(OWNER, here, argv=["/bin/sh"])) == 2
    assert await refused(lambda: strict.start_run(OWNER, there, SLEEP)) == 2
    await strict.destroy_session(OWNER, here)
    again = (await strict.create_session(OWNER, SPEC)).session_id
    with pytest.raises(InvalidSpec):
        await strict.create_terminal(OWNER, again, argv=["/no-such"])
    await strict.create_terminal(OWNER, again, argv=["/bin/sh"])  # one that could not be started does not count


async def test_runs_terminals_and_commands_are_counted_in_their_session(strict: Engine) -> None:
    here, there = [(await strict.create_session(OWNER, SPEC)).session_id for _ in range(2)]
    run = await strict.start_run(OWNER, here, SLEEP)
    with pytest.raises(Exhausted, match="kill one or wait for it"):
        await strict.start_run(OWNER, here, SLEEP)
    terminal = await strict.create_terminal(OWNER, here, argv=["/bin/sh"])
    with pytest.raises(Exhausted, match="already has 1 terminals: close one"):
        await strict.create_terminal(OWNER, here, argv=["/bin/sh"])
    with pytest.raises(Exhausted, match="already runs 2 commands: wait for one to end"):
        await strict.exec(OWNER, here, Command(what=Shell("true")))
    assert (await strict.exec(OWNER, there, Command(what=Shell("echo fine")))).stdout == b"fine\n"
    await strict.destroy_terminal(OWNER, terminal.terminal_id)
    assert await _eventually(strict, here, "echo again") == b"again\n"
    await strict.kill_run(OWNER, run.run_id)


async def _eventually(engine: Engine, session_id: str, text: str) -> bytes:
    """What a command prints once there is room for it again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await engine.exec(OWNER, session_id, Command(what=Shell(text)))).stdout
            except Exhausted:
                await asyncio.sleep(0.01)
