"""Requests over gRPC: nothing of them is read for strangers, and what one owner sends at once is bounded."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.byte_budget import ByteBudget
from k8e.client import AsyncSandboxClient
from k8e.client.channels import open_channel
from k8e.doors.grpc.request_reader import RequestLate, RequestReader
from k8e.doors.service.decoding import REQUEST_BYTES
from k8e.errors import InvalidSpec
from k8e.model import OwnerId, RunId
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
OWNER = OwnerId(f"uid:{os.getuid()}")
ONE, OTHER = OwnerId("uid:1"), OwnerId("uid:2")


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path, loopback=False) as door:
        yield door


async def test_a_stranger_is_refused_before_its_request_has_come(door: OpenDoor) -> None:
    channel = open_channel(dataclasses.replace(door.target, socket=""))
    try:
        exec_call: aio.StreamUnaryCall[bytes, bytes] = channel.stream_unary("/sandbox.v1.SandboxService/Exec")()
        async with asyncio.timeout(PATIENCE_S):
            assert await exec_call.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await channel.close()


@pytest.mark.parametrize("size", [REQUEST_BYTES // 2, REQUEST_BYTES + 1])
async def test_only_what_carries_a_file_may_be_large(tmp_path: Path, size: int) -> None:
    async with open_door(tmp_path) as door:
        channel = open_channel(dataclasses.replace(door.target, socket=""))
        try:
            stub = SandboxStub(channel)
            session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
            written = await stub.WriteFile(
                pb.WriteFileRequest(session_id=session_id, path="x", content_bytes=bytes(size))
            )
            assert written.size == size
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.ListFiles(pb.ListFilesRequest(session_id=session_id, page_token=bytes(size)))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (f"may have {REQUEST_BYTES}" in str(caught.value.details())) == (size > REQUEST_BYTES)
        finally:
            await channel.close()


class Arriving:
    """A caller whose message comes when the test says so."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.is_waited_for = asyncio.Event()
        self.comes = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self.is_waited_for.set()
        await self.comes.wait()
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop(0)


async def read(reader: RequestReader, owner: OwnerId, messages: Arriving) -> bytes:
    return await reader.read(owner, messages, ByteBudget().open(owner))


async def test_few_requests_of_one_owner_arrive_at_a_time_and_others_do_not_wait_for_them() -> None:
    reader = RequestReader(at_once=2)
    callers = [Arriving(b"x") for _ in range(3)]
    waiting = [asyncio.create_task(read(reader, ONE, each)) for each in callers]
    async with asyncio.timeout(PATIENCE_S):
        for each in callers[:2]:
            await each.is_waited_for.wait()
        quick = Arriving(b"y")
        quick.comes.set()
        assert await read(reader, OTHER, quick) == b"y"
        assert not callers[2].is_waited_for.is_set()
        callers[0].comes.set()
        await callers[2].is_waited_for.wait()
        for each in callers:
            each.comes.set()
        assert await asyncio.gather(*waiting) == [b"x"] * 3


async def test_one_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with pytest.raises(RequestLate):
        await read(RequestReader(at_once=1, read_s=0.01), ONE, Arriving(b"x"))
    empty = Arriving()
    empty.comes.set()
    with pytest.raises(InvalidSpec, match="no message"):
        await read(RequestReader(), ONE, empty)


async def test_what_has_arrived_is_counted_by_owner_until_it_is_answered(tmp_path: Path) -> None:
    budget = ByteBudget(per_owner=1000, floor=1000)
    async with open_door(tmp_path, requests=budget) as door:
        channel = open_channel(dataclasses.replace(door.target, socket=""))
        try:
            stub = SandboxStub(channel)
            session_id = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
            held = pb.ExecRequest(session_id=session_id, command=f"sleep 300 # {'x' * 600}")
            running = stub.Exec(held)
            async with asyncio.timeout(PATIENCE_S):
                while budget.held() < 600:
                    await asyncio.sleep(0.01)
            small, large = (pb.ExecRequest(session_id=session_id, command=f"true {'x' * size}") for size in (1, 600))
            with pytest.raises(aio.AioRpcError, match="hold too much memory"):
                await stub.Exec(large)
            assert (await stub.Exec(small)).exit_code == 0
            running.cancel()
            async with asyncio.timeout(PATIENCE_S):
                while budget.held():
                    await asyncio.sleep(0.01)
            assert (await stub.Exec(large)).exit_code == 0
        finally:
            await channel.close()


async def test_output_that_its_owner_has_no_memory_for_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_door(tmp_path, answers=ByteBudget(per_owner=100, floor=100)) as door,
        AsyncSandboxClient(target=door.target) as client,
    ):
        session_id = await client.create_session()
        runs = [await client.run_background(f"head -c {size} /dev/zero", session_id=session_id) for size in (50, 200)]
        async with asyncio.timeout(PATIENCE_S):
            while [door.engine.polled_bytes(OWNER, each) for each in map(RunId, runs)] != [50, 200]:
                await asyncio.sleep(0.01)
        assert len((await client.poll_run(runs[0])).stdout) == 50
        monkeypatch.setattr(door.engine, "poll_run", None)
        async with open_channel(door.target) as channel:
            with pytest.raises(aio.AioRpcError, match="hold too much memory"):
                await SandboxStub(channel).PollRun(pb.PollRunRequest(run_id=runs[1]))
