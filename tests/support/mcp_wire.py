"""An MCP client at the end of the RPC `ServeMcp`: bare lines for what no library would send, and the official client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from grpc import aio
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.session import ElicitationFnT
from mcp.shared.message import SessionMessage
from mcp_types import TextContent, jsonrpc_message_adapter

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.client.discovery import Target

__all__ = ["INITIALIZE", "Wire", "agent", "first_text", "wire"]

PATIENCE_S = 60.0


def initialize(revision: str, **capabilities: Any) -> dict[str, Any]:
    params = {
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


INITIALIZE = initialize("2024-11-05")


class Wire:
    """Lines both ways."""

    def __init__(self, call: aio.StreamStreamCall[pb.McpInput, pb.McpOutput]) -> None:
        self._call = call

    async def send(self, *messages: dict[str, Any] | Sequence[object] | bytes) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            await self._call.write(pb.McpInput(line=line))

    async def receive(self) -> Any:
        """The next line, or None at the end of the stream."""
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._call.read()
        return json.loads(answer.line) if isinstance(answer, pb.McpOutput) else None

    async def answers(self, *ids: int | str | None) -> dict[Any, Any]:
        """The answers to these requests, in whatever order and among whatever else they come."""
        found: dict[Any, Any] = {}
        while set(found) != set(ids):
            message = await self.receive()
            assert message is not None, f"the stream ended before {set(ids) - set(found)} was answered"
            if "method" not in message:
                found[message["id"]] = message
        return found

    async def ask(self, method: str, request_id: int | str = 1, **params: Any) -> Any:
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return (await self.answers(request_id))[request_id]

    async def tool(self, name: str, request_id: int | str = 1, **arguments: Any) -> Any:
        return (await self.ask("tools/call", request_id, name=name, arguments=arguments))["result"]

    async def begin(self, revision: str = "2025-11-25", **capabilities: Any) -> Any:
        """The handshake."""
        await self.send(initialize(revision, **capabilities))
        answer = (await self.answers(0))[0]
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    async def end(self) -> None:
        """The end of our input; what we asked is still answered."""
        await self._call.done_writing()

    async def rest(self) -> list[Any]:
        """Everything until the end of the stream."""
        found = []
        while (message := await self.receive()) is not None:
            found.append(message)
        return found

    def cut(self) -> None:
        """As when our process is killed."""
        self._call.cancel()


@asynccontextmanager
async def wire(target: Target, client_id: str = "test-client", *, tenant_id: str = "") -> AsyncIterator[Wire]:
    # As gRPC is spoken from elsewhere: only its own channel writes one by one.
    channel = open_channel(dataclasses.replace(target, socket=""))
    call = SandboxStub(channel).ServeMcp()
    try:
        await call.write(pb.McpInput(start=pb.McpStart(client_id=client_id, tenant_id=tenant_id)))
        yield Wire(call)
    finally:
        call.cancel()
        await channel.close()


@asynccontextmanager
async def agent(
    target: Target,
    client_id: str = "test-client",
    *,
    tenant_id: str = "",
    mode: ConnectMode = "legacy",
    elicitation: ElicitationFnT | None = None,
) -> AsyncIterator[Client]:
    """The official client over such a stream; it ends its input and waits for the end of the answers."""
    async with (
        wire(target, client_id, tenant_id=tenant_id) as lines,
        Client(transport(lines), mode=mode, elicitation_callback=elicitation) as client,
    ):
        yield client


@asynccontextmanager
async def transport(lines: Wire) -> AsyncIterator[tuple[Any, Any]]:
    answers, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, requests = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with answers:
            while (message := await lines.receive()) is not None:
                # To its end, also when nobody listens any more: giving up one read would cancel the call.
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await answers.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    async def write() -> None:
        async with requests:
            async for item in requests:
                await lines.send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        await lines.end()

    async with asyncio.TaskGroup() as group:
        group.create_task(read(), name="read")
        group.create_task(write(), name="write")
        yield incoming, outgoing
        await incoming.aclose()
        await outgoing.aclose()


def first_text(content: Sequence[object]) -> str:
    first = content[0]
    assert isinstance(first, TextContent)
    return first.text
