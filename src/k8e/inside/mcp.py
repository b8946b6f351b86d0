"""The MCP clients of this server: their calls come from inside, as whoever opened the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from k8e.doors.service.call import Call
from k8e.doors.service.edge import Edge
from k8e.doors.service.mcp import McpClient
from k8e.errors import Conflict, Unauthenticated
from k8e.identity import Caller, KeyRing, Role
from k8e.inside.channel import InsideChannel, InsideClient
from k8e.mcp.host import Host
from k8e.model import OwnerId

__all__ = ["InsideMcp"]


@dataclass(frozen=True, slots=True)
class Opened:
    edge: Edge
    tasks: asyncio.TaskGroup
    host: Host


class Over(Exception):
    """Ends a group of tasks from within: raised and caught here alone."""


SERVER = Caller(owner=OwnerId("server"), identity="server", role=Role.ADMIN, via="inside")


class InsideMcp:
    """The MCP server of the RPC `ServeMcp`, for whoever was let in; the RPC exists before the edge that it calls into."""

    def __init__(self, keys: KeyRing, *, grace_s: float) -> None:
        self._keys = keys
        self._grace_s = grace_s
        self._open: Opened | None = None

    @asynccontextmanager
    async def open(self, edge: Edge, *, sweeping: bool = True) -> AsyncIterator[Host]:
        """Until the block ends, which must be after the last door is closed."""
        try:
            async with asyncio.TaskGroup() as tasks:

                def as_server(owner: str) -> InsideClient:
                    return self._client(edge, tasks, SERVER, OwnerId(owner) if owner else SERVER.owner)

                host = Host(tasks, as_server, grace_s=self._grace_s)
                self._open = Opened(edge, tasks, host)
                if sweeping:
                    tasks.create_task(host.sweep(), name="what MCP clients left")
                try:
                    yield host
                finally:
                    host.close()
                raise Over  # noqa: TRY301 - there is no other way to end what runs in a group
        except* Over:
            self._open = None

    async def serve(
        self, call: Call, client: McpClient, lines: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        if self._open is None:
            raise Conflict("the server is stopping: connect again")
        opened = self._open
        async with self._client(opened.edge, opened.tasks, call.caller, call.owner) as calls:
            is_over = await opened.host.serve(
                calls,
                owner=call.owner,
                client_id=client.client_id,
                tenant_id=client.tenant_id,
                lines=lines,
                write=write,
            )
        if not is_over:
            raise Conflict("the server is stopping: connect again")

    def _client(self, edge: Edge, tasks: asyncio.TaskGroup, caller: Caller, owner: OwnerId) -> InsideClient:
        return InsideClient(InsideChannel(edge=edge, caller=caller, owner=owner, check=self._check, tasks=tasks))

    def _check(self, caller: Caller) -> None:
        if caller.key_id and self._keys.with_id(caller.key_id) is None:
            raise Unauthenticated("the API key was deleted or has expired: ask an administrator for a new one")
