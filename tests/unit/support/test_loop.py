"""Time that passes for the loop of the async tests, and time that does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.loop import Loop

PAUSE_S = 0.2


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


async def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_clock_stands_still_while_another_test_runs(loop: Loop) -> None:
    began, before = time.monotonic(), loop.run_until_complete(now())
    time.sleep(PAUSE_S)
    assert loop.time() - before < time.monotonic() - began - PAUSE_S / 2
    assert loop.run_until_complete(now()) - before < time.monotonic() - began - PAUSE_S / 2


def test_what_was_under_way_is_not_overdue_afterwards(loop: Loop) -> None:
    async def work() -> str:
        async with asyncio.timeout(PAUSE_S / 2):
            await asyncio.sleep(PAUSE_S / 4)
        return "in time"

    async def begin() -> asyncio.Task[str]:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    time.sleep(PAUSE_S)
    assert loop.run_until_complete(task) == "in time"


def test_the_clock_goes_on_while_it_runs(loop: Loop) -> None:
    async def wait() -> float:
        before = await now()
        await asyncio.sleep(0.01)
        return await now() - before

    assert loop.run_until_complete(wait()) >= 0.01
