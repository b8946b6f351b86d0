"""Blocking work in threads: whoever asked for it hears its end, or it never begins."""

from __future__ import annotations

import asyncio
import threading

import pytest

from k8e.substrate.local.threads import Threads

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


class Work:
    """Blocks until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        self.has_ended = True
        return "done"


async def under_way(threads: Threads, work: Work) -> asyncio.Task[str]:
    task = asyncio.create_task(threads.run(work))
    assert await asyncio.to_thread(work.begun.wait, PATIENCE_S)
    return task


async def test_the_result_comes_back() -> None:
    work = Work()
    task = await under_way(Threads("test", 1), work)
    work.may_end.set()
    assert await task == "done"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_caller_waits_for_work_that_has_begun(times: int) -> None:
    work = Work()
    task = await under_way(Threads("test", 1), work)
    for _ in range(times):
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.has_ended


async def test_work_whose_caller_was_cancelled_first_never_begins() -> None:
    threads, first, second = Threads("test", 1), Work(), Work()
    running = await under_way(threads, first)
    waiting = asyncio.create_task(threads.run(second))
    await asyncio.wait([waiting], timeout=0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.may_end.set()
    assert await running == "done"
    assert not second.begun.is_set()


async def test_an_error_of_work_that_nobody_waits_for_any_more_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        raise OSError("broken")

    task = asyncio.create_task(Threads("test", 1).run(fail))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not caplog.records
