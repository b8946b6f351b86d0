"""Several engines on one substrate: each has its own sandboxes, and leaves alone what a living one holds."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.errors import Conflict, SandboxFailed, StoreFailed
from k8e.lifecycle import Phase
from k8e.model import Command, Outcome, SandboxId, SessionSpec, Shell
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.substrate.owners import LEASE_S
from k8e.substrate.pool import PoolSettings
from tests.support.agents import execute
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell
from tests.support.credentials import written_down

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


class Gateways:
    """Engines with a data directory each, whose sandboxes are all in one place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machine = BareMachine(directory / "substrate")

    @asynccontextmanager
    async def open(self, name: str, *, warm: int = 0, lease_s: float = LEASE_S) -> AsyncIterator[Engine]:
        machine = BareMachine(self.directory / "substrate")
        substrate = MachineSubstrate(machine, PoolSettings(min=warm, max=warm), lease_s=lease_s)
        async with Engine.open(EngineSettings(data_dir=self.directory / name), substrate) as engine:
            yield engine

    async def gone(self, sandbox: SandboxId) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sandbox in await self.machine.survivors():
                await asyncio.sleep(0.01)


@pytest.fixture
async def gateways(data_dir: Path) -> AsyncIterator[Gateways]:
    found = Gateways(data_dir)
    yield found
    for sandbox in await found.machine.survivors():
        await found.machine.destroy(sandbox)


async def session(engine: Engine) -> tuple[Cell, SandboxId]:
    view = await engine.create_session(OWNER, SessionSpec())
    assert view.sandbox is not None
    return Cell(engine, view.session_id), view.sandbox


async def until_ready(engine: Engine, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while sum(pool.ready for pool in engine.status().pool.values()) != count:
            await asyncio.sleep(0.01)


async def test_a_second_engine_leaves_the_first_ones_sandboxes_alone(gateways: Gateways) -> None:
    async with gateways.open("a", warm=1) as first:
        mine, sandbox = await session(first)
        await until_ready(first, 1)
        warm = frozenset(await gateways.machine.warm())
        run = await first.start_run(
            OWNER, mine.id, Command(what=Shell("while [ ! -e go ]; do sleep 0.01; done; echo went"))
        )
        async with gateways.open("b") as second:
            assert second.list_sessions(OWNER) == []
            assert second.status().pool == {}, "what the first has ready is not its"
            theirs, other = await session(second)
            assert (await theirs.sh("echo b")).stdout == b"b\n"
            await second.destroy_all()
            assert await gateways.machine.survivors() == {sandbox, *warm}, "the control: its own are gone"
            assert other not in await gateways.machine.survivors()
        assert (await mine.sh("touch go; echo a")).stdout == b"a\n"
        *_, last = [item async for item in first.open_run(OWNER, run.run_id)]
        assert isinstance(last, Outcome)
        assert last.exit_code == 0
        await first.destroy_all()
    assert await gateways.machine.survivors() == frozenset()


async def test_what_a_stopped_engine_holds_waits_for_it(gateways: Gateways) -> None:
    async with gateways.open("a") as first:
        mine, sandbox = await session(first)
        await mine.sh("echo kept > file")
    async with gateways.open("b") as second:
        await second.destroy_all()
        assert await gateways.machine.survivors() == {sandbox}
    async with gateways.open("a") as again:
        assert (await Cell(again, mine.id).sh("cat file")).stdout == b"kept\n"
        await again.destroy_all()


async def test_what_nobody_holds_any_more_is_removed_once_the_lease_is_over(gateways: Gateways) -> None:
    async with gateways.open("a") as first:
        mine, sandbox = await session(first)
    async with gateways.open("b", lease_s=0.0) as second:
        theirs, other = await session(second)
        await gateways.gone(sandbox)
        assert (await theirs.sh("echo still here")).stdout == b"still here\n"
        assert await gateways.machine.survivors() == {other}
        async with gateways.open("a", lease_s=0.0) as again:
            view = again.get_session(OWNER, mine.id)
            assert (view.phase, view.detail) == (Phase.FAILED, "its sandbox did not survive")
            # Its lease is over at every moment, but it lives: it holds its lock.
            assert (await theirs.sh("echo still here")).stdout == b"still here\n"
        await second.destroy_all()


async def test_an_engine_whose_sandbox_was_taken_over_stays_away(gateways: Gateways) -> None:
    async with gateways.open("a") as engine:
        mine, sandbox = await session(engine)
        other, _ = await session(engine)
        assert (await mine.sh("echo mine")).stdout == b"mine\n"
        ours = written_down(gateways.machine, sandbox)
        async with await gateways.machine.dial(sandbox, replace(ours, epoch=ours.epoch + 1)) as newer:
            for _ in range(3):
                with pytest.raises(
                    SandboxFailed, match=f"another gateway owns the sandbox now .epoch {ours.epoch + 1}."
                ):
                    await mine.sh("touch /workspace/not-mine")
            assert "another gateway" in engine.get_session(OWNER, mine.id).detail
            assert (await execute(newer, shell="ls /workspace")).stdout == b""
            assert not newer.is_lost, "nobody fights for it"
        assert (await other.sh("echo other")).stdout == b"other\n"
        # An agent's word alone keeps nobody from being removed: it is never trusted.
        await engine.destroy_all()
    assert await gateways.machine.survivors() == frozenset()


async def test_two_processes_cannot_be_the_same_gateway(gateways: Gateways) -> None:
    async with gateways.open("a") as first:
        mine, _ = await session(first)
        shutil.copytree(gateways.directory / "a", gateways.directory / "copy")
        with pytest.raises(Conflict, match="stop it first"):
            async with gateways.open("copy"):
                pass
        assert (await mine.sh("echo undisturbed")).stdout == b"undisturbed\n"
        await first.destroy_all()


async def test_an_engine_that_cannot_see_whose_a_sandbox_is_removes_nothing(gateways: Gateways) -> None:
    async with gateways.open("a") as first:
        mine, sandbox = await session(first)
    owner = gateways.machine.owners_dir / "sandboxes" / sandbox
    owner.rename(owner.with_name(".kept"))
    owner.mkdir()  # cannot be read, as with too many open files
    with pytest.raises(SandboxFailed, match="see whose a sandbox is"):
        async with gateways.open("a"):
            pass
    owner.rmdir()
    owner.with_name(".kept").rename(owner)
    async with gateways.open("a") as again:
        assert (await Cell(again, mine.id).sh("echo still here")).stdout == b"still here\n"
        await again.destroy_all()


@pytest.mark.parametrize("content", ["", "\n", "gw-", "../../etc"])
async def test_a_damaged_name_of_a_gateway_is_said_with_the_way_out(gateways: Gateways, content: str) -> None:
    (gateways.directory / "a").mkdir()
    name = gateways.directory / "a" / "gateway"
    name.write_text(content)
    with pytest.raises(StoreFailed, match=f"{name} does not hold this server's name: restore it, or remove it"):
        async with gateways.open("a"):
            pass
    name.unlink()
    async with gateways.open("a"):
        written = name.read_text()
    name.write_text(written + "\n")
    async with gateways.open("a"):
        pass


async def test_an_engine_that_has_lost_its_store_removes_what_it_had(gateways: Gateways) -> None:
    async with gateways.open("a") as first:
        _, sandbox = await session(first)
    for path in (gateways.directory / "a").glob("engine.sqlite*"):
        path.unlink()
    async with gateways.open("b"), gateways.open("a") as again:
        assert again.list_sessions(OWNER) == []
        await gateways.gone(sandbox)
