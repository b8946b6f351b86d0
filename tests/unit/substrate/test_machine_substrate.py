"""What a substrate of one machine keeps across a restart, on bare sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from k8e.engine.substrate import Held
from k8e.errors import SandboxFailed
from k8e.model import Claim, Runtime, SandboxId, Template
from k8e.substrate.machine_substrate import MachineSubstrate
from k8e.tasks import Tasks
from tests.support.bare_machine import BareMachine
from tests.support.substrates import over

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
TEMPLATE = Template(runtime=Runtime.CONTAINER)
USUAL = Claim(cpus=1, processes=64)


@asynccontextmanager
async def begun(machine: BareMachine, *, ready: int, gateway: str = "gw") -> AsyncIterator[MachineSubstrate]:
    async with Tasks() as tasks:
        substrate = over(machine, min=ready, max=4)
        try:
            await substrate.begin(tasks, gateway=gateway, usual=USUAL, check_room=lambda: None)
            yield substrate
        finally:
            await substrate.close()


async def until_ready(substrate: MachineSubstrate, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while TEMPLATE not in substrate.pool() or substrate.pool()[TEMPLATE].ready != count:
            await asyncio.sleep(0.01)


async def test_after_a_restart_warm_sandboxes_are_ready_and_a_claimed_one_is_never_put_back(data_dir: Path) -> None:
    machine = BareMachine(data_dir / "substrate")
    async with begun(machine, ready=2) as first:
        first.keep_warm(TEMPLATE)
        await until_ready(first, 2)
        claimed = await first.claim(TEMPLATE, USUAL)
        assert claimed.warm
        assert claimed.sandbox not in await machine.warm(), "nothing says any more that nobody has used it"
        await until_ready(first, 2)
    async with begun(machine, ready=0) as second:
        assert second.pool()[TEMPLATE].ready == 2
        assert await second.mine() == {claimed.sandbox: Held(epoch=claimed.epoch + 1, alive=True)}
        again = [await second.claim(TEMPLATE, USUAL) for _ in range(2)]
        assert all(each.warm for each in again)
        assert claimed.sandbox not in {each.sandbox for each in again}
        await second.clear()
    assert await machine.survivors() == frozenset()


async def test_a_claim_that_is_cancelled_leaves_nothing(data_dir: Path) -> None:
    machine = BareMachine(data_dir / "substrate")
    async with begun(machine, ready=0) as substrate:
        claiming = asyncio.ensure_future(substrate.claim(TEMPLATE, USUAL))
        async with asyncio.timeout(PATIENCE_S):
            while not await machine.survivors():
                await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        # What was made for it waits for the next one, and is nobody's until then.
        assert await substrate.mine() == {}
        await substrate.clear()
    assert await machine.survivors() == frozenset()


async def test_warm_sandboxes_that_died_meanwhile_are_removed(data_dir: Path) -> None:
    machine = BareMachine(data_dir / "substrate")
    async with begun(machine, ready=1) as first:
        first.keep_warm(TEMPLATE)
        await until_ready(first, 1)
    (sandbox,) = await machine.warm()
    machine.kill(sandbox)
    await machine.death(sandbox)
    async with begun(machine, ready=0) as second:
        assert TEMPLATE not in second.pool()
        assert await second.mine() == {}
    assert await machine.survivors() == frozenset()


class _Unsure(BareMachine):
    """Cannot say whether its sandboxes live until it is told that it can."""

    can_say = False

    def alive(self, sandbox: SandboxId) -> bool:
        if not self.can_say:
            raise OSError("too many open files")
        return super().alive(sandbox)


async def test_a_start_that_cannot_see_whether_a_sandbox_lives_ends_without_removing_it(data_dir: Path) -> None:
    machine = BareMachine(data_dir / "substrate")
    async with begun(machine, ready=0) as first:
        claimed = await first.claim(TEMPLATE, USUAL)
    unsure = _Unsure(data_dir / "substrate")
    with pytest.raises(SandboxFailed, match="too many open files"):
        async with begun(unsure, ready=0):
            pass
    assert machine.alive(claimed.sandbox)
    unsure.can_say = True
    async with begun(unsure, ready=0) as second:
        (held,) = (await second.mine()).values()
        assert held.alive
        await second.clear()
    assert await machine.survivors() == frozenset()
