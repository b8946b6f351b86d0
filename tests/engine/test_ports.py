"""Connections to ports and the life of their session: counted, in use, and never resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, Quotas
from k8e.errors import Conflict, Exhausted, SandboxFailed, SandboxLost
from k8e.model import Code, Command, Language, Limits, Runtime, SessionSpec, Shell
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell
from tests.support.credentials import written_down
from tests.support.restartable_engine import RestartableEngine
from tests.support.servers_inside import ECHO, TELL_END, program, serve
from tests.support.substrates import over

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SPEC = SessionSpec(runtime=Runtime.CONTAINER)


@pytest.fixture
async def strict(data_dir: Path) -> AsyncIterator[Engine]:
    settings = EngineSettings(
        data_dir=data_dir / "engine",
        quotas=Quotas(ports_per_session=2, execs_per_session=2),
    )
    async with Engine.open(settings, over(BareMachine(data_dir / "substrate"))) as engine:
        yield engine
        await engine.destroy_all()


async def test_a_session_has_so_many_connections_and_no_more(strict: Engine) -> None:
    here, there = [(await strict.create_session(OWNER, SPEC)).session_id for _ in range(2)]
    port = await serve(strict, here, ECHO)
    first = await strict.open_port(OWNER, here, port)
    second = await strict.open_port(OWNER, here, port)
    with pytest.raises(Exhausted, match="already has 2 connections to its ports: close one"):
        await strict.open_port(OWNER, here, port)
    other = await strict.open_port(OWNER, there, await serve(strict, there, ECHO))
    # Connections are no commands: the server's own run is one, and there is room for another.
    assert (await strict.exec(OWNER, here, Command(what=Shell("echo fine")))).stdout == b"fine\n"
    await second.close()
    await second.close()  # twice frees one place
    third = await strict.open_port(OWNER, here, port)
    with pytest.raises(Exhausted):
        await strict.open_port(OWNER, here, port)
    for each in (first, third, other):
        await each.close()


async def test_those_that_are_opened_at_once_or_in_vain_are_counted_right(strict: Engine) -> None:
    session_id = (await strict.create_session(OWNER, SPEC)).session_id
    for _ in range(3):
        with pytest.raises(Conflict, match="nothing listens"):
            await strict.open_port(OWNER, session_id, 9)
    port = await serve(strict, session_id, ECHO)

    async def attempt() -> bool:
        try:
            await strict.open_port(OWNER, session_id, port)
        except Exhausted:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt(), name="open") for _ in range(5)]
    assert sum(each.result() for each in attempts) == 2


async def test_a_session_with_an_open_connection_is_not_idle(strict: Engine) -> None:
    spec = SessionSpec(runtime=Runtime.CONTAINER, limits=Limits(idle_timeout_s=3600))
    session_id = (await strict.create_session(OWNER, spec)).session_id
    run = await strict.start_run(OWNER, session_id, Command(what=Code(Language.PYTHON, program(ECHO)), timeout_s=0))
    async with asyncio.timeout(PATIENCE_S):
        while not (line := (await strict.poll_run(OWNER, run.run_id)).stdout).endswith(b"\n"):
            await asyncio.sleep(0.02)
    connection = await strict.open_port(OWNER, session_id, int(line))
    await strict.kill_run(OWNER, run.run_id)
    async with asyncio.timeout(PATIENCE_S):
        while (await strict.poll_run(OWNER, run.run_id)).outcome is None:
            await asyncio.sleep(0.02)
    # Nothing runs in it any more; of its use the connection is left, though nobody is at its other end.
    assert strict.get_session(OWNER, session_id).idle_at == 0
    await connection.close()
    assert strict.get_session(OWNER, session_id).idle_at > 0


async def test_the_end_of_a_session_ends_its_connections(cell: Cell) -> None:
    connection = await cell.engine.open_port(OWNER, cell.id, await serve(cell.engine, cell.id, TELL_END))
    assert await connection.receive() == b"hello"
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        ending = group.create_task(cell.engine.destroy_session(OWNER, cell.id), name="destroy")
        with pytest.raises(SandboxLost):
            await connection.receive()
        await ending
    with pytest.raises(SandboxLost):
        await connection.send(b"x")
    await connection.close()


async def test_a_connection_is_not_resumed_when_its_link_is_lost(cell: Cell, bare_machine: BareMachine) -> None:
    port = await serve(cell.engine, cell.id, ECHO)
    connection = await cell.engine.open_port(OWNER, cell.id, port)
    sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
    assert sandbox is not None
    # An agent has one owner, and of equal ones the newest wins.
    async with await bare_machine.dial(sandbox, written_down(bare_machine, sandbox)):
        with pytest.raises(SandboxFailed, match=f"the connection to port {port} was cut") as cut:
            await connection.receive()
        assert not isinstance(cut.value, SandboxLost)
        with pytest.raises(SandboxFailed):
            await connection.send(b"x")
    await connection.close()
    again = await cell.engine.open_port(OWNER, cell.id, port)
    await again.send(b"still there")
    assert await again.receive() == b"still there"
    await again.close()


async def test_a_connection_ends_with_its_server_and_the_session_goes_on(restartable: RestartableEngine) -> None:
    async with restartable.open() as engine:
        session_id = (await engine.create_session(OWNER, SPEC)).session_id
        port = await serve(engine, session_id, TELL_END)
        await (await engine.open_port(OWNER, session_id, port)).receive()  # left open, as a dying server leaves it
    async with restartable.open() as engine:
        async with asyncio.timeout(PATIENCE_S):
            while b"reset" not in (await engine.exec(OWNER, session_id, Command(what=Shell("cat end")))).stdout:
                await asyncio.sleep(0.02)
        again = await engine.open_port(OWNER, session_id, port)
        assert await again.receive() == b"hello"
        await again.close()
        await engine.destroy_all()
