"""The MCP clients of one server: who is there, and what is left of those who are not.

A client that ends takes its sandboxes with it. One that is cut off, or was there when the server went down, has a grace
to come back; then they go, too. The protocol's library is loaded when the first client comes, in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from k8e.client import AsyncSandboxClient
from k8e.client.errors import SandboxError
from k8e.errors import HostUnsupported
from k8e.mcp.scope import MARKED, PREFIX, ClientScope, destroy_marked, mark_of

__all__ = ["Host"]

_log = logging.getLogger(__name__)

HOSTING = "k8e.mcp.hosting"

Mark = tuple[str, str]
"""An owner and the mark of one of its clients: a guessed client id finds nothing of somebody else's."""


@dataclass(slots=True)
class Held:
    """What a client's sandboxes wait for: the end of its streams, or the end of the grace."""

    streams: int = 0
    ending: asyncio.Task[None] | None = None


class Host:
    """`as_server` is a client that speaks for any owner: what is left behind goes whatever became of its maker."""

    def __init__(
        self, tasks: asyncio.TaskGroup, as_server: Callable[[str], AsyncSandboxClient], *, grace_s: float
    ) -> None:
        self._tasks = tasks
        self._as_server = as_server
        self._grace_s = grace_s
        self._held: dict[Mark, Held] = {}
        self._leaving = asyncio.Event()
        self._is_closed = False
        self._loading = asyncio.Lock()

    async def serve(
        self,
        client: AsyncSandboxClient,
        *,
        owner: str,
        client_id: str,
        tenant_id: str,
        lines: AsyncIterator[bytes],
        write: Callable[[bytes], Awaitable[None]],
    ) -> bool:
        """Serve one stream to its end; False where it is we who leave."""
        scope = ClientScope(client, client_id, tenant_id=tenant_id, prefix=PREFIX)
        mark = (owner, mark_of(client_id))
        self._hold(mark)
        is_over = False
        try:
            is_over = await self._serve(client, scope, lines, write)
        finally:
            ending = self._let_go(mark, after_s=0 if is_over else self._grace_s)
        if is_over and ending is not None:
            # Whoever ends a client finds nothing left of it; the wait is ours, the work is not.
            await asyncio.wait({ending})
        return is_over

    async def sweep(self) -> None:
        """Give what clients of an earlier server left the same grace as a client that was cut off."""
        try:
            async with self._as_server("") as client:
                sessions = await client.sessions("all", all_owners=True)
        except SandboxError as error:
            _log.warning("sandboxes of MCP clients are not looked for", extra={"reason": str(error)})
            return
        for mark in {(each.owner, found[1]) for each in sessions if (found := MARKED.fullmatch(each.session_id))}:
            if mark not in self._held:
                self._hold(mark)
                self._let_go(mark, after_s=self._grace_s)

    def leave(self) -> None:
        """The server goes: clients that wait for nothing are told at once, the others when they have their answers."""
        self._leaving.set()

    def close(self) -> None:
        """From now on nothing is begun: what is left is the next server's to find."""
        self._is_closed = True

    async def _serve(
        self,
        client: AsyncSandboxClient,
        scope: ClientScope,
        lines: AsyncIterator[bytes],
        write: Callable[[bytes], Awaitable[None]],
    ) -> bool:
        first = await self._first(lines)
        if first is None:
            return not self._leaving.is_set()
        await self._load()
        # Half a second of imports, done by now.
        from k8e.mcp import hosting

        server = hosting.build_server(client, scope)
        return await hosting.serve(server, preceded(first, lines), write, leaving=self._leaving)

    async def _first(self, lines: AsyncIterator[bytes]) -> bytes | None:
        """The first line; None where none comes before the end, or before we leave.

        Whoever only holds a client here says nothing, and needs no library.
        """

        async def line() -> bytes | None:
            return await anext(lines, None)

        async with asyncio.TaskGroup() as group:
            coming = group.create_task(line(), name="first line of an MCP client")
            leaving = group.create_task(self._leaving.wait(), name="leave an MCP client")
            await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if coming.done():
                return coming.result()
            coming.cancel()
        return None

    async def _load(self) -> None:
        async with self._loading:
            if HOSTING in sys.modules:
                return
            try:
                await asyncio.to_thread(importlib.import_module, HOSTING)
            except ModuleNotFoundError as error:
                raise HostUnsupported(f"MCP needs more on the server: pip install 'k8e[server]' ({error})") from error

    def _hold(self, mark: Mark) -> None:
        held = self._held.setdefault(mark, Held())
        held.streams += 1
        if held.ending is not None:
            held.ending.cancel()
            held.ending = None

    def _let_go(self, mark: Mark, *, after_s: float) -> asyncio.Task[None] | None:
        held = self._held[mark]
        held.streams -= 1
        if held.streams or self._is_closed:
            return None
        held.ending = self._tasks.create_task(self._end(mark, after_s), name=f"end of MCP client {mark[1]}")
        return held.ending

    async def _end(self, mark: Mark, after_s: float) -> None:
        await asyncio.sleep(after_s)
        owner, name = mark
        try:
            async with self._as_server(owner) as client:
                await destroy_marked(client, f"{PREFIX}-{name}-")
        except* SandboxError as errors:
            # The next start's sweep, or their own lifetime, ends them.
            for error in errors.exceptions:
                _log.warning("a sandbox of an MCP client stays", extra={"owner": owner, "reason": str(error)})
        self._held.pop(mark, None)


async def preceded(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in lines:
        yield line
