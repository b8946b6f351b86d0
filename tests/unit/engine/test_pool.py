"""A sandbox that dies before anybody has it is removed, whatever moment it chooses, and another takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from k8e.engine.boxes import Box
from k8e.engine.pool import Pool
from k8e.engine.settings import PoolSettings
from k8e.engine.tasks import Tasks
from k8e.model import Death, Template

pytestmark = pytest.mark.anyio

TEMPLATE = Template()


class _Member:
    """As much of a sandbox as a pool sees."""

    template = TEMPLATE

    def __init__(self, number: int) -> None:
        self.id = f"sb-{number}"
        self.is_dead = False
        self.died: Callable[[Box, Death], None] | None = None

    def die(self, *, tell: bool = True) -> None:
        self.is_dead = True
        if tell and self.died is not None:
            self.died(cast("Box", self), Death())


class _Yard:
    """Where the pool's sandboxes come from and go to."""

    def __init__(self) -> None:
        self.built: list[_Member] = []
        self.removed: list[_Member] = []
        self.doomed = 0
        self.changed = asyncio.Condition()

    async def build(self, template: Template) -> Box:
        self.built.append(_Member(len(self.built)))
        return cast("Box", self.built[-1])

    async def prepare(self, box: Box) -> None:
        if self.doomed:
            self.doomed -= 1
            cast("_Member", box).die()
        async with self.changed:
            self.changed.notify_all()

    async def discard(self, box: Box) -> None:
        async with self.changed:
            self.removed.append(cast("_Member", box))
            self.changed.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(is_so)


@pytest.fixture
async def yard() -> _Yard:
    return _Yard()


@pytest.fixture
async def pool(yard: _Yard) -> AsyncIterator[Pool]:
    async with Tasks() as tasks:
        settings = PoolSettings(min=1, max=1)
        pool = Pool(settings, tasks, build=yard.build, prepare=yard.prepare, discard=yard.discard)
        yield pool
        await pool.close()  # else what a claim has put off is begun when nobody can begin anything any more


async def _filled(pool: Pool) -> None:
    """Until one is on the shelf."""
    pool.keep(TEMPLATE, floor=1)
    pool.refill(TEMPLATE)
    while not pool.status()[TEMPLATE].ready:
        await asyncio.sleep(0)


async def _claimed(pool: Pool) -> _Member:
    box, _ = await pool.claim(TEMPLATE)
    return cast("_Member", box)


async def test_one_that_dies_while_it_is_prepared_is_removed_and_replaced(pool: Pool, yard: _Yard) -> None:
    yard.doomed = 1
    await _filled(pool)
    await yard.until(lambda: yard.removed == yard.built[:1])
    assert await _claimed(pool) is yard.built[1]


async def test_one_that_dies_on_the_shelf_is_removed_and_replaced(pool: Pool, yard: _Yard) -> None:
    await _filled(pool)
    yard.built[0].die()
    await yard.until(lambda: yard.removed == yard.built[:1])
    assert await _claimed(pool) is yard.built[1]


async def test_a_claim_that_meets_a_dead_one_removes_it_once_and_gets_another(pool: Pool, yard: _Yard) -> None:
    await _filled(pool)
    first = yard.built[0]
    first.die(tell=False)  # as if its death were about to be told
    assert await _claimed(pool) is yard.built[1]
    first.die()
    await yard.until(lambda: bool(yard.removed))
    assert yard.removed == [first]


async def test_one_that_was_handed_to_a_claim_that_left_and_died_is_removed(pool: Pool, yard: _Yard) -> None:
    claiming = asyncio.ensure_future(pool.claim(TEMPLATE))
    while not yard.built:
        await asyncio.sleep(0)
    yard.built[0].die()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await yard.until(lambda: yard.removed == yard.built[:1])
