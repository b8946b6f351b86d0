"""A sandbox that dies before anybody has it is removed, whatever moment it chooses, and another takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from k8e.model import Death, SandboxId, Template
from k8e.substrate.pool import LiveSandbox, PoolSettings, WarmPools
from k8e.tasks import Tasks
from tests.support.credentials import CREDENTIALS

pytestmark = pytest.mark.anyio

TEMPLATE = Template()


class _Yard:
    """Where the pool's sandboxes come from and go to."""

    def __init__(self) -> None:
        self.built: list[LiveSandbox] = []
        self.removed: list[LiveSandbox] = []
        self.doomed = 0
        self.changed = asyncio.Condition()

    async def build(self, template: Template) -> LiveSandbox:
        self.built.append(LiveSandbox(SandboxId(f"sb-{len(self.built)}"), CREDENTIALS))
        return self.built[-1]

    async def prepare(self, template: Template, member: LiveSandbox) -> None:
        if self.doomed:
            self.doomed -= 1
            member.death = Death()
        async with self.changed:
            self.changed.notify_all()

    async def discard(self, member: LiveSandbox) -> None:
        async with self.changed:
            self.removed.append(member)
            self.changed.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(is_so)


@pytest.fixture
async def yard() -> _Yard:
    return _Yard()


@pytest.fixture
async def pool(yard: _Yard) -> AsyncIterator[WarmPools]:
    async with Tasks() as tasks:
        settings = PoolSettings(min=1, max=1)
        pool = WarmPools(settings, tasks, build=yard.build, prepare=yard.prepare, discard=yard.discard)
        yield pool
        await pool.close()  # else what a claim has put off is begun when nobody can begin anything any more


async def _filled(pool: WarmPools) -> None:
    """Until one is ready."""
    pool.keep(TEMPLATE, floor=1)
    pool.refill(TEMPLATE)
    while not pool.status()[TEMPLATE].ready:
        await asyncio.sleep(0)


async def _claimed(pool: WarmPools) -> LiveSandbox:
    member, _ = await pool.claim(TEMPLATE)
    return member


async def test_one_that_dies_while_it_is_prepared_is_removed_and_replaced(pool: WarmPools, yard: _Yard) -> None:
    yard.doomed = 1
    await _filled(pool)
    await yard.until(lambda: yard.removed == yard.built[:1])
    assert await _claimed(pool) is yard.built[1]


async def test_one_that_dies_in_the_pool_is_removed_and_replaced(pool: WarmPools, yard: _Yard) -> None:
    await _filled(pool)
    yard.built[0].death = Death()
    assert pool.died(yard.built[0])
    await yard.until(lambda: yard.removed == yard.built[:1])
    assert await _claimed(pool) is yard.built[1]


async def test_a_claim_that_meets_a_dead_one_removes_it_once_and_gets_another(pool: WarmPools, yard: _Yard) -> None:
    await _filled(pool)
    first = yard.built[0]
    first.death = Death()  # as if it were about to be told
    assert await _claimed(pool) is yard.built[1]
    assert not pool.died(first)
    await yard.until(lambda: bool(yard.removed))
    assert yard.removed == [first]


async def test_one_that_was_handed_to_a_claim_that_left_and_died_is_removed(pool: WarmPools, yard: _Yard) -> None:
    claiming = asyncio.ensure_future(pool.claim(TEMPLATE))
    while not yard.built:
        await asyncio.sleep(0)
    yard.built[0].death = Death()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await yard.until(lambda: yard.removed == yard.built[:1])
