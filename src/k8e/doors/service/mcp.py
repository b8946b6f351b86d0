"""An MCP server at the other end of a stream; which one is the host's business, who asks is ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.errors import InvalidSpec

__all__ = ["McpClient", "McpHost", "McpRpcs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """Who is at the other end, in its own words; what they stand for is checked against the caller's owner."""

    client_id: str
    tenant_id: str


class McpHost(Protocol):
    async def serve(
        self, call: Call, client: McpClient, lines: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve lines of JSON-RPC until they end and everything is answered. Raises: K8eError."""
        ...


class McpRpcs:
    def __init__(self, host: McpHost) -> None:
        self._host = host

    async def ServeMcp(self, call: Call, inputs: AsyncIterator[pb.McpInput]) -> None:
        first = await anext(inputs, None)
        if first is None or first.WhichOneof("input") != "start":
            raise InvalidSpec("must be the first message", field="start")
        client = McpClient(
            client_id=fields.word(first.start.client_id, "client_id"),
            tenant_id=fields.word(first.start.tenant_id, "tenant_id", required=False),
        )

        async def write(line: bytes) -> None:
            await call.write(pb.McpOutput(line=line))

        await self._host.serve(call, client, lines(inputs), write)


async def lines(inputs: AsyncIterator[pb.McpInput]) -> AsyncIterator[bytes]:
    async for message in inputs:
        if message.WhichOneof("input") != "line":
            raise InvalidSpec("may come only once, as the first message", field=message.WhichOneof("input") or "input")
        yield message.line
