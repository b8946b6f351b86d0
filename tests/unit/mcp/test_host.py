"""Who an MCP client is, what is its own, and what is left when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client import AsyncSandboxClient
from k8e.client.channels import open_channel
from k8e.client.discovery import Target
from k8e.doors.grpc import handlers
from k8e.doors.service.call import Call
from k8e.identity import Role
from k8e.mcp import host
from k8e.mcp.scope import mark_of
from tests.support.door import OpenDoor, open_door
from tests.support.mcp_wire import Wire, wire

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    """A server that gives no grace."""
    async with open_door(tmp_path, mcp_grace_s=0) as door:
        yield door


def sessions(door: OpenDoor) -> set[str]:
    return {each.session_id for each in door.engine.list_sessions(None)}


async def until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not found():
            await asyncio.sleep(0.01)


async def own_session(lines: Wire) -> str:
    return str((await lines.tool("sandbox_run", code="true"))["structuredContent"]["session_id"])


async def refused(target: Target, words: str, *messages: pb.McpInput) -> str:
    """The code with which a stream is ended that begins with these messages, or else as it should."""
    channel = open_channel(dataclasses.replace(target, socket=""))
    call = SandboxStub(channel).ServeMcp()
    try:
        # The refusal may come before everything is written: gRPC then answers the write with an error of its own.
        with contextlib.suppress(asyncio.InvalidStateError, aio.AioRpcError):
            for message in messages or (pb.McpInput(start=pb.McpStart(client_id="test-client")),):
                await call.write(message)
        with pytest.raises(aio.AioRpcError, match=words) as caught:
            await call.read()
        return caught.value.code().name
    finally:
        call.cancel()
        await channel.close()


async def begun(lines: Wire) -> str:
    await lines.begin()
    return await own_session(lines)


async def test_what_a_client_made_goes_with_it_and_what_it_named_stays(door: OpenDoor) -> None:
    async with wire(door.target, "agent-1") as lines:
        own = await begun(lines)
        made = (await lines.tool("sandbox_create_session"))["structuredContent"]["session_id"]
        child = (await lines.tool("sandbox_run_subagent", parent_session_id=own))["structuredContent"]["session_id"]
        await lines.tool("sandbox_create_session", session_id="named")
        tenants = (await lines.tool("sandbox_create_session", tenant_id="team"))["structuredContent"]["session_id"]
        assert sessions(door) == {own, made, child, "named", tenants}
        assert own.startswith(f"mcp-{mark_of('agent-1')}-own-")
        assert made.startswith(f"mcp-{mark_of('agent-1')}-")
        await lines.end()
        await lines.rest()
    assert sessions(door) == {"named", tenants}


async def test_the_own_session_of_a_tenant_is_the_tenant_s_and_stays(door: OpenDoor) -> None:
    for _ in range(2):
        async with wire(door.target, tenant_id="team") as lines:
            own = await begun(lines)
            await lines.end()
            await lines.rest()
        (view,) = door.engine.list_sessions(None)
        assert (view.session_id, view.tenant) == (own, "team")


async def test_a_client_that_was_cut_off_and_comes_back_finds_its_session(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is: word of the cut never comes so late that it is taken for an end.
    monkeypatch.setattr(handlers, "CUT_S", 60.0)
    async with wire(door.target, "agent-1") as lines:
        own = await begun(lines)
        lines.cut()
    async with wire(door.target, "agent-1") as lines:
        assert await begun(lines) == own


async def test_a_client_that_was_cut_off_and_does_not_come_back_leaves_nothing(hasty: OpenDoor) -> None:
    async with wire(hasty.target, "agent-1") as lines:
        own = await begun(lines)
        assert own in sessions(hasty)
        lines.cut()
        await until(lambda: not sessions(hasty))


async def test_first_calls_that_come_together_share_one_session(door: OpenDoor) -> None:
    async with wire(door.target) as lines:
        await lines.begin()
        params = {"name": "sandbox_run", "arguments": {"code": "true"}}
        ids = range(1, 9)
        await lines.send(*({"jsonrpc": "2.0", "id": each, "method": "tools/call", "params": params} for each in ids))
        answers = await lines.answers(*ids)
        used = {each["result"]["structuredContent"]["session_id"] for each in answers.values()}
        assert used == sessions(door)
        assert len(used) == 1


async def test_two_streams_of_one_client_share_its_session_until_the_last_one_ends(door: OpenDoor) -> None:
    async with wire(door.target, "agent-1") as first, wire(door.target, "agent-1") as second:
        own = await begun(first)
        assert await begun(second) == own
        await first.end()
        await first.rest()
        assert sessions(door) == {own}
        await second.end()
        await second.rest()
    assert not sessions(door)


async def test_another_owner_with_the_same_client_id_has_a_scope_of_its_own(door: OpenDoor) -> None:
    _, key = door.keys.create("stranger")
    async with wire(door.target, "agent-1") as mine:
        own = await begun(mine)
        async with wire(dataclasses.replace(door.target, api_key=key), "agent-1") as theirs:
            other = await begun(theirs)
            assert other != own
            refused = await theirs.tool("sandbox_exec", session_id=own, command="true")
            assert refused["isError"] is True
            await theirs.end()
            await theirs.rest()
        assert sessions(door) == {own}
        assert (await mine.tool("sandbox_exec", session_id=own, command="true"))["isError"] is False


async def test_a_stream_that_says_nothing_holds_what_its_client_makes_elsewhere(door: OpenDoor) -> None:
    """As the agents' HTTP door does for its clients."""
    made = f"mcp-{mark_of('guest')}-own-1"
    async with AsyncSandboxClient(target=door.target) as client, wire(door.target, "guest") as held:
        await client.create_session(session_id=made)
        assert sessions(door) == {made}
        await held.end()
        assert await held.rest() == []
    assert not sessions(door)


async def test_no_client_gives_a_session_that_is_to_stay_a_name_of_those_that_go(hasty: OpenDoor) -> None:
    """The control is a name that only looks alike, which the next server leaves alone."""
    async with wire(hasty.target) as lines:
        await lines.begin()
        refused = await lines.tool("sandbox_create_session", session_id=f"mcp-{'ab' * 6}-mine")
        assert refused["isError"] is True
        assert refused["content"][0]["text"].startswith("session_id: ")
        assert (await lines.tool("sandbox_create_session", session_id="mcp-mine"))["isError"] is False
    await hasty.agents.sweep()
    assert sessions(hasty) == {"mcp-mine"}


async def test_what_clients_of_an_earlier_server_left_goes_after_the_grace(hasty: OpenDoor) -> None:
    """Made by hand, as nobody is there whose it is; what only looks alike stays."""
    left, alike = f"mcp-{'ab' * 6}-own-1", f"mcp-{'xy' * 6}-own-1"
    async with AsyncSandboxClient(target=hasty.target) as client:
        for name in (left, alike, "mcp-mine"):
            await client.create_session(session_id=name)
    await hasty.agents.sweep()
    await until(lambda: left not in sessions(hasty))
    assert sessions(hasty) == {alike, "mcp-mine"}


async def test_what_a_client_of_an_earlier_server_left_waits_for_its_return(door: OpenDoor) -> None:
    left = f"mcp-{mark_of('agent-1')}-own-1"
    async with AsyncSandboxClient(target=door.target) as client:
        await client.create_session(session_id=left)
    await door.agents.sweep()
    async with wire(door.target, "agent-1") as lines:
        assert await begun(lines) == left


async def test_a_key_that_is_deleted_ends_what_its_stream_may_do(door: OpenDoor) -> None:
    _, key = door.keys.create("robot")
    async with wire(dataclasses.replace(door.target, api_key=key)) as lines:
        await begun(lines)
        door.keys.delete("robot")
        refused = await lines.tool("sandbox_run", code="true")
        assert refused["isError"] is True
        assert "deleted or has expired" in refused["content"][0]["text"]


async def test_a_server_without_the_library_says_what_it_lacks_and_nothing_stays(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, host.HOSTING, raising=False)
        patch.setattr(importlib, "import_module", missing)
        async with wire(door.target) as lines:
            with pytest.raises(aio.AioRpcError, match="pip install"):
                await lines.begin()
    async with wire(door.target) as lines:
        await lines.begin()


async def test_an_approver_has_no_tools(door: OpenDoor) -> None:
    _, key = door.keys.create("lead", role=Role.APPROVER)
    await refused(dataclasses.replace(door.target, api_key=key), "approver")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([pb.McpInput(line=b"{}")], "start: must be the first message"),
        ([pb.McpInput(start=pb.McpStart())], "client_id: is required"),
        ([pb.McpInput(start=pb.McpStart(client_id="a b"))], "client_id"),
        ([pb.McpInput(start=pb.McpStart(client_id="a", tenant_id="/"))], "tenant_id"),
        ([pb.McpInput(start=pb.McpStart(client_id="a"))] * 2, "start: may come only once"),
    ],
)
async def test_a_stream_that_does_not_begin_as_it_should_is_refused(
    door: OpenDoor, messages: list[pb.McpInput], words: str
) -> None:
    assert await refused(door.target, words, *messages) == "INVALID_ARGUMENT"


async def test_calls_of_a_client_are_recorded_and_limited_as_any(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def step(name: str, call: Call, request: object) -> Iterator[None]:
        seen.append((name, call.owner))
        yield

    async with open_door(tmp_path, steps=(step,)) as door, wire(door.target) as lines:
        await begun(lines)
    names = [name for name, _ in seen]
    assert "ServeMcp" in names
    assert "CreateSession" in names
    assert "ExecAttach" in names
    owners = {owner for name, owner in seen if name in {"CreateSession", "ExecAttach"}}
    assert owners == {seen[names.index("ServeMcp")][1]}
