"""How much one identity may ask at a time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from mcp_types import JSONRPCRequest

from k8e.mcp.admission import BYTES, CALLS, LARGE, STREAMS
from k8e.web.rooms import Full, Room

pytestmark = pytest.mark.anyio


def call(tool: str) -> JSONRPCRequest:
    """Every client's number 1."""
    return JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={"name": tool})


@pytest.mark.parametrize(
    ("tool", "size", "most"),
    [("sandbox_exec", 0, CALLS), ("sandbox_exec_stream", 0, STREAMS), ("sandbox_write_file", BYTES // 4, 4)],
)
async def test_a_room_that_is_full_has_place_again_when_somebody_leaves(tool: str, size: int, most: int) -> None:
    room = Room()
    async with AsyncExitStack() as inside:
        for _ in range(most - 1):
            await inside.enter_async_context(room.place(call(tool), size))
        async with room.place(call(tool), size):
            with pytest.raises(Full):
                await inside.enter_async_context(room.place(call(tool), size))
        await inside.enter_async_context(room.place(call(tool), size))


async def test_large_answers_wait_for_their_turn_and_one_that_leaves_the_queue_takes_none() -> None:
    room, entered, queued = Room(), list[int](), asyncio.Semaphore(0)

    async def read(number: int) -> None:
        queued.release()
        async with room.place(call("sandbox_read_file"), 0):
            entered.append(number)

    async with asyncio.TaskGroup() as group, AsyncExitStack() as inside:
        for _ in range(LARGE):
            await inside.enter_async_context(room.place(call("sandbox_read_file"), 0))
        waiting = [group.create_task(read(number), name=f"reader {number}") for number in range(3)]
        for _ in waiting:
            await queued.acquire()
        # Others do not wait behind them.
        async with room.place(call("sandbox_exec"), 0):
            assert entered == []
        waiting[0].cancel()
        await asyncio.wait({waiting[0]})
        assert entered == []
    assert entered == [1, 2]
    for number in range(LARGE):
        await read(number)


async def test_what_comes_in_has_a_bound_together_and_a_single_request_may_always_come() -> None:
    room = Room()

    async def half() -> dict[str, object]:
        return {"type": "http.request", "body": HALF, "more_body": True}

    with room.arriving(half) as first:
        for _ in range(3):
            await first()
    with room.arriving(half) as first, room.arriving(half) as second:
        await first()
        await second()
        for each in (first, second):
            with pytest.raises(Full):
                await each()
    with room.arriving(half) as first, room.arriving(half) as second:
        await first()
        await second()


HALF = b"x" * (BYTES // 2)
