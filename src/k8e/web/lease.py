"""A client of this door, held at the server: what it has made ends there when this process lets go of it, or dies.

The server knows how to end what an MCP client made, at its end or some time after it was cut off. So each client of ours
has a stream there, which carries nothing: its end is the client's end, and our death is a cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from k8e.client.errors import SandboxError
from k8e.client.mcp import McpCalls

__all__ = ["hold"]

_log = logging.getLogger(__name__)

RETRY_S = 2.0


async def hold(calls: McpCalls, client_id: str, ended: asyncio.Event, lost: Callable[[], Awaitable[None]]) -> None:
    """Hold what `client_id` makes until `ended`, through restarts of the server; then let it be destroyed.

    `lost` is told when the server goes away.
    """
    while True:
        try:
            async for _ in calls.lines(client_id, nothing(ended)):
                pass
        except SandboxError as error:
            _log.info("an MCP client is not held by the server", extra={"reason": str(error)})
        if ended.is_set():
            return
        # What the client has made waits at the server for a while.
        await lost()
        try:
            async with asyncio.timeout(RETRY_S):
                await ended.wait()
        except TimeoutError:
            continue


async def nothing(ended: asyncio.Event) -> AsyncIterator[bytes]:
    """No line at all, until the end."""
    await ended.wait()
    never: tuple[bytes, ...] = ()
    for line in never:
        yield line
