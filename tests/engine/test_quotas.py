"""What one owner may hold: each refusal says what to do, and holds nobody else up."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from k8e.engine.ceilings import Ceilings, Share
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, Quotas
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import GIB, MIB, Capacity, Command, Limits, OwnerId, Runtime, SandboxId, SessionSpec, Shell
from k8e.substrate.machine import Machine
from k8e.wire.aio import Credentials, Link
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER
from tests.support.restartable_engine import RestartableEngine
from tests.support.substrates import over

pytestmark = pytest.mark.anyio

OTHER = OwnerId("uid:4711")
SPEC = SessionSpec(runtime=Runtime.CONTAINER)
SLEEP = Command(what=Shell("sleep 600"), timeout_s=0)


@pytest.fixture
async def strict(data_dir: Path) -> AsyncIterator[Engine]:
    quotas = Quotas(sessions=2, runs_per_session=1, terminals_per_session=1, execs_per_session=2)
    settings = EngineSettings(data_dir=data_dir / "engine", quotas=quotas)
    async with Engine.open(settings, over(BareMachine(data_dir / "substrate"))) as engine:
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


SMALL = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB, ttl_s=3600, command_timeout_s=5)
"""So that two of these fit the share and three do not."""


@pytest.fixture
async def narrow(data_dir: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        data_dir=data_dir / "engine",
        quotas=Quotas(workspaces=1, share=Share(memory_bytes=512 * MIB, disk_bytes=512 * MIB)),
        ceilings=Ceilings(memory_bytes=512 * MIB, ttl_s=3600, command_timeout_s=5),
    )
    async with Engine.open(settings, over(BareMachine(data_dir / "substrate"))) as engine:
        yield engine
        await engine.destroy_all()


def _spec(limits: Limits = SMALL, *, tenant: str = "") -> SessionSpec:
    return SessionSpec(runtime=Runtime.CONTAINER, limits=limits, tenant=tenant)


@pytest.mark.parametrize(
    "greedy",
    [
        {"memory_bytes": 4096 * GIB},
        {"disk_bytes": 2048 * GIB},
        {"cpus": 4096.0},
        {"processes": 1 << 22},
        {"output_bytes": 1 << 40},
        {"run_output_bytes": 1 << 40},
        {"connections": 1 << 20},
        {"ttl_s": 3601.0},
    ],
    ids=lambda greedy: next(iter(greedy)),
)
async def test_no_limit_goes_beyond_its_ceiling(narrow: Engine, greedy: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=f"limits.{next(iter(greedy))}: .* is more than this server allows"):
        await narrow.create_session(OWNER, _spec(dataclasses.replace(SMALL, **greedy)))
    assert not narrow.list_sessions(OWNER)


async def test_times_have_ceilings_wherever_they_are_asked_for(narrow: Engine) -> None:
    view = await narrow.create_session(OWNER, _spec(dataclasses.replace(SMALL, ttl_s=0)))
    assert view.expires_at > 0
    assert view.limits.ttl_s == 3600
    with pytest.raises(InvalidSpec, match="max_ttl"):
        await narrow.extend_session(OWNER, view.session_id, ttl_s=7200)
    await narrow.extend_session(OWNER, view.session_id, ttl_s=3600)
    with pytest.raises(InvalidSpec, match=r"timeout_s: .*max_command_timeout"):
        await narrow.exec(OWNER, view.session_id, Command(what=Shell("true"), timeout_s=6))
    assert (await narrow.exec(OWNER, view.session_id, Command(what=Shell("true"), timeout_s=5))).outcome.exit_code == 0
    endless = await narrow.start_run(OWNER, view.session_id, SLEEP)
    async with asyncio.timeout(60):
        while (ended := (await narrow.poll_run(OWNER, endless.run_id)).outcome) is None:
            await asyncio.sleep(0.05)
    assert ended.exit_code == 124


async def test_an_owners_sessions_have_no_more_together_than_its_share(narrow: Engine) -> None:
    first = await narrow.create_session(OWNER, _spec())
    await narrow.run_subagent(OWNER, first.session_id)
    for refused in (narrow.create_session(OWNER, _spec()), narrow.run_subagent(OWNER, first.session_id)):
        with pytest.raises(Exhausted, match=r"2 sessions already have 512 MiB and may have 512 MiB together"):
            await refused
    await narrow.create_session(OTHER, _spec())
    await narrow.destroy_session(OWNER, first.session_id)
    await narrow.create_session(OWNER, _spec())


async def test_workspaces_are_counted_while_nobody_uses_them(narrow: Engine) -> None:
    kept = await narrow.create_session(OWNER, _spec(tenant="kept"))
    await narrow.destroy_session(OWNER, kept.session_id)
    with pytest.raises(Exhausted, match="already have 1 workspaces: delete one"):
        await narrow.create_session(OWNER, _spec(tenant="one-more"))
    again = await narrow.create_session(OWNER, _spec(tenant="kept"))
    await narrow.create_session(OWNER, _spec(dataclasses.replace(SMALL, disk_bytes=256 * MIB)))
    await narrow.destroy_session(OWNER, again.session_id)
    with pytest.raises(Exhausted, match="disk_per_owner"):
        await narrow.create_session(OWNER, _spec(dataclasses.replace(SMALL, disk_bytes=129 * MIB)))


async def test_a_host_that_is_short_of_memory_takes_no_more_sessions(data_dir: Path) -> None:
    substrate = BareMachine(data_dir / "substrate")
    settings = EngineSettings(data_dir=data_dir / "engine")
    short = dataclasses.replace(settings, reserve_memory=substrate.capacity().memory_bytes)
    async with Engine.open(short, over(substrate)) as engine:
        with pytest.raises(Exhausted, match="of memory left and keeps") as caught:
            await engine.create_session(OWNER, SPEC)
        assert caught.value.retry_after_s
    async with Engine.open(settings, over(substrate)) as engine:
        await engine.create_session(OWNER, SPEC)
        await engine.destroy_all()


class _Shrinking:
    """A substrate whose host runs out of memory as soon as somebody was admitted."""

    def __init__(self, substrate: BareMachine) -> None:
        self._substrate = substrate
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._substrate, name)

    def capacity(self) -> Capacity:
        self.looks += 1
        found = self._substrate.capacity()
        return found if self.looks < 3 else dataclasses.replace(found, free_memory_bytes=0)


async def test_memory_is_looked_at_again_when_a_sandbox_is_about_to_be_made(data_dir: Path) -> None:
    substrate = _Shrinking(BareMachine(data_dir / "substrate"))
    settings = EngineSettings(data_dir=data_dir / "engine")
    async with Engine.open(settings, over(cast("Machine", substrate))) as engine:
        # One look when the engine opened, one when the session is admitted; the next is the sandbox's.
        assert substrate.looks == 1
        with pytest.raises(Exhausted, match="of memory left and keeps"):
            await engine.create_session(OWNER, SPEC)
        assert substrate.looks == 3
        assert not engine.list_sessions(OWNER)
        substrate.looks = -10
        await engine.create_session(OWNER, SPEC)
        await engine.destroy_all()


async def test_a_sub_agent_of_a_session_from_before_gets_no_more_than_the_ceilings_of_today(
    restartable: RestartableEngine,
) -> None:
    async with restartable.open() as engine:
        parent = await engine.create_session(OWNER, _spec(dataclasses.replace(SMALL, memory_bytes=512 * MIB)))
    async with restartable.open(ceilings=Ceilings(memory_bytes=300 * MIB, ttl_s=60)) as engine:
        assert engine.get_session(OWNER, parent.session_id).limits.memory_bytes == 512 * MIB
        child = await engine.run_subagent(OWNER, parent.session_id)
        assert (child.limits.memory_bytes, child.limits.ttl_s) == (300 * MIB, 60)
        await engine.destroy_all()


async def test_after_a_restart_nobody_waits_for_another_ones_agent(restartable: RestartableEngine) -> None:
    count = 3
    async with restartable.open() as engine:
        for _ in range(count):
            await engine.create_session(OWNER, _spec())
    dial, all_dialled = restartable.machine.dial, asyncio.Event()
    dialled: list[SandboxId] = []

    async def together(sandbox: SandboxId, credentials: Credentials) -> Link:
        dialled.append(sandbox)
        if len(dialled) == count:
            all_dialled.set()
        async with asyncio.timeout(60):
            await all_dialled.wait()
        return cast("Link", await dial(sandbox, credentials))

    restartable.machine.dial = together  # type: ignore[attr-defined]  # it has what its substrate has
    async with restartable.open() as engine:
        assert len({*dialled}) == count
        assert [view.phase for view in engine.list_sessions(OWNER)] == ["Active"] * count
        await engine.destroy_all()


async def _eventually(engine: Engine, session_id: str, text: str) -> bytes:
    """What a command prints once there is room for it again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return (await engine.exec(OWNER, session_id, Command(what=Shell(text)))).stdout
            except Exhausted:
                await asyncio.sleep(0.01)


async def test_followers_count_as_commands_that_run(strict: Engine) -> None:
    """As much output waits here for each of them."""
    sid = (await strict.create_session(OWNER, SPEC)).session_id
    reader = await strict.open_exec(OWNER, sid, SLEEP, exec_id="mine")
    follower = await strict.follow_exec(OWNER, sid, "mine")
    with pytest.raises(Exhausted, match="already runs 2"):
        await strict.follow_exec(OWNER, sid, "mine")
    await follower.close()
    await (await strict.follow_exec(OWNER, sid, "mine")).close()
    await reader.close()
