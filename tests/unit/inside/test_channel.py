"""The SDK over a channel that goes straight into the edge: the same answers, errors and ends as through a door."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.client import AsyncSandboxClient
from k8e.client.errors import DeadlineExceeded, InvalidRequest, NotFound, ServerFailed, Unauthenticated
from k8e.errors import Unauthenticated as Refused
from k8e.identity import Caller, local_caller
from k8e.inside import InsideChannel, InsideClient
from tests.support import inside
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


class Check:
    is_good = True

    def __call__(self, caller: Caller) -> None:
        if not self.is_good:
            raise Refused("no longer")


@pytest.fixture
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


@pytest.fixture
def check() -> Check:
    return Check()


@pytest.fixture
async def client(door: OpenDoor, check: Check, tasks: asyncio.TaskGroup) -> AsyncIterator[AsyncSandboxClient]:
    caller = local_caller(os.geteuid(), operator=os.geteuid(), via="unix")
    channel = InsideChannel(edge=door.edge, caller=caller, owner=caller.owner, check=check, tasks=tasks)
    async with InsideClient(channel) as client:
        yield client


async def test_every_shape_of_call_is_answered(client: AsyncSandboxClient) -> None:
    session_id = await client.create_session()
    assert (await client.exec(session_id, "echo one")).stdout == "one\n"
    assert [text async for text in client.exec_stream(session_id, "echo two")] == ["two\n"]
    big = os.urandom(3 * 1024 * 1024)
    assert await client.write_file(session_id, "/workspace/big", big) == len(big)
    assert await client.read_bytes(session_id, "/workspace/big") == big
    assert (await client.exec(session_id, "wc -c", stdin=big)).stdout.split() == [str(len(big))]


async def test_errors_are_those_of_the_sdk(client: AsyncSandboxClient) -> None:
    with pytest.raises(NotFound, match="session none not found"):
        await client.get("none")
    with pytest.raises(InvalidRequest, match="language"):
        await client.run("x", "cobol")


async def test_a_deadline_is_kept(client: AsyncSandboxClient) -> None:
    session_id = await client.create_session()
    asked = await client.confirm(session_id, "deploy", timeout=0)
    assert (await client.confirmed(asked.approval_id, timeout=0.05)).status == "pending"
    request = pb.ConfirmActionRequest(approval_id=asked.approval_id)
    with pytest.raises(DeadlineExceeded):
        await client._call(client._stub.ConfirmAction, request, timeout_s=0.05)


async def test_a_caller_that_is_no_longer_good_is_refused(client: AsyncSandboxClient, check: Check) -> None:
    session_id = await client.create_session()
    check.is_good = False
    with pytest.raises(Unauthenticated, match="no longer"):
        await client.exec(session_id, "true")
    check.is_good = True
    assert (await client.exec(session_id, "true")).exit_code == 0


@pytest.mark.parametrize("way", ["exec", "exec_stream"])
async def test_a_scope_that_cancels_again_and_again_still_lets_the_command_be_ended(
    client: AsyncSandboxClient, tmp_path: Path, way: str
) -> None:
    """anyio cancels at every await until its scope is left; what ends a command must not be cut off by that."""
    session_id = await client.create_session()
    mark = tmp_path / "pid"

    async def run() -> None:
        command = f"echo $$ > {mark}; exec sleep 1000"
        if way == "exec":
            await client.exec(session_id, command, timeout=0)
        else:
            async for _ in client.exec_stream(session_id, command, timeout=0):
                pass

    async with asyncio.timeout(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            pid = await inside.running(mark)
            group.cancel_scope.cancel()
        await inside.gone(pid)
    assert (await client.exec(session_id, "echo alive")).stdout == "alive\n"


async def test_a_bug_in_one_call_is_logged_and_hurts_no_other(
    client: AsyncSandboxClient, door: OpenDoor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session_id = await client.create_session()

    async def broken(*args: object) -> None:
        raise ZeroDivisionError("secret detail")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(door.edge, "answer", broken)
        with pytest.raises(ServerFailed) as caught:
            await client.get(session_id)
        assert str(caught.value) == "internal error"
    assert "call from inside failed unexpectedly" in caplog.text
    assert (await client.get(session_id)).session_id == session_id
