"""A client of this door, held at the server: what it has made ends there when this process lets go of it, or dies.

The server knows how to end what an MCP client made, at its end or some time after it was cut off. So each client of ours
has a stream there, which carries nothing: its end is the client's end, and our death is a cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from k8e.client.errors import Conflict, Denied, Exhausted, SandboxError, ServerFailed, Unreachable

__all__ = ["hold"]

_log = logging.getLogger(__name__)

RETRY_S = 2.0
RETRY_MOST_S = 60.0
GOING = (Unreachable, ServerFailed, Conflict)
"""What a server says, or does not, that is gone or about to stop."""


class Lines(Protocol):
    """As `McpCalls` has it."""

    def lines(self, client_id: str, said: AsyncIterator[bytes]) -> AsyncIterator[bytes]: ...


async def hold(calls: Lines, client_id: str, ended: asyncio.Event, lost: Callable[[], Awaitable[None]]) -> None:
    """Hold what `client_id` makes until `ended`, through restarts of the server; then let it be destroyed.

    `lost` is told when the server goes away. It is over sooner where the server does not want this client.
    """
    pause_s = 0.0
    while not ended.is_set():
        error = await broken(calls, client_id, ended)
        if ended.is_set():
            return
        _log.info("an MCP client is not held by the server", extra={"reason": str(error or "it let go")})
        if isinstance(error, Denied):
            return
        if error is None or isinstance(error, GOING):
            # What the client has made waits at the server for a while.
            await lost()
        pause_s = next_pause_s(error, pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await ended.wait()


async def broken(calls: Lines, client_id: str, ended: asyncio.Event) -> SandboxError | None:
    """Hold it once; why that ended before its time, where somebody said why."""
    try:
        async for _ in calls.lines(client_id, nothing(ended)):
            pass
    except SandboxError as error:
        return error
    return None


def next_pause_s(error: SandboxError | None, before_s: float) -> float:
    """How long to wait before the next try: a server that is there and has no room is asked ever more seldom."""
    if error is None or isinstance(error, GOING):
        return RETRY_S
    wanted_s = (error.retry_after_s or 0.0) if isinstance(error, Exhausted) else 0.0
    return max(wanted_s, min(2 * before_s, RETRY_MOST_S), RETRY_S)


async def nothing(ended: asyncio.Event) -> AsyncIterator[bytes]:
    """No line at all, until the end."""
    await ended.wait()
    never: tuple[bytes, ...] = ()
    for line in never:
        yield line
