"""The event loop behind the synchronous client: whoever waits for it is answered, also when it is being closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from k8e.client.sync import loop as subject
from k8e.client.sync.faces import drained

PATIENCE_S = 60.0


def test_a_call_that_comes_while_the_loop_is_closed_is_refused_and_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, ended = subject.LoopThread(), list[BaseException]()
    end_others = subject._end_others

    def come_late() -> None:
        try:
            thread.wait(asyncio.sleep(3600))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ended
            ended.append(error)

    late = threading.Thread(target=come_late, daemon=True)

    async def and_then_one_comes() -> None:
        await end_others()
        late.start()
        async with asyncio.timeout(PATIENCE_S):
            while not ended and len(asyncio.all_tasks()) == 1:
                await asyncio.sleep(0.001)

    monkeypatch.setattr(subject, "_end_others", and_then_one_comes)
    thread.close()
    late.join(5)
    assert [str(each) for each in ended] == ["the client is closed: make another"]


def test_a_call_that_waits_when_the_loop_is_closed_is_cancelled() -> None:
    thread, ended, waits = subject.LoopThread(), list[BaseException](), threading.Event()

    async def forever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def work() -> None:
        try:
            thread.wait(forever())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ended
            ended.append(error)

    working = threading.Thread(target=work)
    working.start()
    assert waits.wait(PATIENCE_S)
    thread.close()
    working.join(PATIENCE_S)
    assert [type(each).__name__ for each in ended] == ["CancelledError"]
    thread.close()


def test_a_stream_that_was_forgotten_is_closed_whichever_thread_collects_it() -> None:
    thread, closed = subject.LoopThread(), threading.Event()

    async def stream() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    forgotten = [drained(thread, stream())]
    assert next(forgotten[0]) == 1

    async def collect() -> None:
        forgotten.clear()

    thread.wait(collect())
    assert closed.wait(PATIENCE_S)
    thread.close()
