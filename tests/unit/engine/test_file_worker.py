"""Work on files off the event loop: in order, whole, and waited for whoever leaves."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from k8e.engine.file_worker import FileWorker
from k8e.model import OwnerId

pytestmark = pytest.mark.anyio


@pytest.fixture
def worker() -> Iterator[FileWorker]:
    with contextlib.closing(FileWorker()) as worker:
        yield worker


async def test_what_is_asked_for_is_done_in_order_on_another_thread(worker: FileWorker) -> None:
    done: list[int] = []
    threads = set[int]()

    def work(number: int) -> None:
        done.append(number)
        threads.add(threading.get_ident())

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(worker.run(lambda number=number: work(number)), name=f"work {number}")  # type: ignore[misc]
    assert done == list(range(100))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_what_it_returns_or_raises_is_told(worker: FileWorker) -> None:
    assert await worker.run(lambda: 42) == 42

    def fail() -> None:
        raise OSError("as the test wants it")

    with pytest.raises(OSError, match="as the test wants it"):
        await worker.run(fail)


async def test_the_loop_goes_on_meanwhile_and_whoever_is_cancelled_leaves_only_when_it_is_done(
    worker: FileWorker,
) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    waiting = asyncio.ensure_future(worker.run(work))
    try:
        while not begun.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            waiting.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
    finally:
        may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_work_of_a_waiter_that_was_cancelled_before_its_turn_is_done_too(worker: FileWorker) -> None:
    may_end, done = threading.Event(), list[str]()
    first = asyncio.ensure_future(worker.run(may_end.wait))
    second = asyncio.ensure_future(worker.run(lambda: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    may_end.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert done == ["second"]


async def test_an_owners_reads_wait_for_each_other_and_for_no_other_owners_nor_for_what_is_written(
    worker: FileWorker,
) -> None:
    may_end = threading.Event()
    slow, quick = OwnerId("uid:1"), OwnerId("uid:2")
    waiting = [asyncio.ensure_future(worker.read(slow, may_end.wait)) for _ in range(100)]
    try:
        await asyncio.sleep(0)
        assert await worker.read(quick, lambda: 1) == 1
        assert await worker.run(lambda: 2) == 2
        assert not any(each.done() for each in waiting), "the control"
    finally:
        may_end.set()
    for each in waiting:
        assert await each


async def test_a_reader_that_leaves_leaves_its_owners_turn_to_the_thread_that_still_reads(worker: FileWorker) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    owner = OwnerId("uid:1")

    def fail() -> None:
        begun.set()
        may_end.wait()
        ended.set()
        raise OSError("nobody hears this")

    leaving = asyncio.ensure_future(worker.read(owner, fail))
    while not begun.is_set():
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    next_one = asyncio.ensure_future(worker.read(owner, ended.is_set))
    await asyncio.sleep(0)
    may_end.set()
    assert await next_one, "it came after"


async def test_what_a_read_raises_is_told_and_the_owners_next_one_goes_on(worker: FileWorker) -> None:
    def fail() -> None:
        raise OSError("as the test wants it")

    for _ in range(2):
        with pytest.raises(OSError, match="as the test wants it"):
            await worker.read(OwnerId("uid:1"), fail)
