"""Who the server takes a visitor for: asked of the server itself, and remembered for a moment.

Each credential has one connection to the server, so that everything a visitor does there is done, limited and written
down as its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from k8e.client.aio import AsyncSandboxClient
from k8e.client.discovery import Target
from k8e.client.errors import Unauthenticated, Unreachable
from k8e.client.mcp import McpCalls
from k8e.client.people import Identity
from k8e.http_visitor import Visitor

__all__ = ["Revive", "Visitors"]

KNOWN_S = 5.0
"""How long an answer about a key holds: so late a deleted key is noticed by this door, at most."""
ANSWER_S = 3.0
"""For the server's answer, before we look whether it runs at all."""
ASKING = 16
"""Questions at a time about keys that were never good here; further ones wait, and nobody else waits for them."""


@dataclass(slots=True, kw_only=True)
class Known:
    client: AsyncSandboxClient
    mcp: McpCalls
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    who: Identity | None = None
    asked_at: float = 0.0
    is_doubted: bool = False

    def is_fresh(self) -> bool:
        return self.who is not None and not self.is_doubted and time.monotonic() - self.asked_at < KNOWN_S

    @property
    def was_good(self) -> bool:
        """Whether the server has known it once."""
        return self.asked_at > 0

    def visitor(self, who: Identity) -> Visitor:
        return Visitor(client=self.client, identity=who.identity, owner=who.owner, role=who.role, mcp=self.mcp)

    async def close(self) -> None:
        await self.mcp.aclose()
        await self.client.close()


Revive = Callable[[], Awaitable[bool]]
"""Bring the server back, where that is ours to do; false where it is not."""


class Visitors:
    """Everybody this door knows; `open` it."""

    def __init__(self, target: Target, revive: Revive) -> None:
        self._target = target
        self._revive = revive
        self._reviving = asyncio.Lock()
        self._asking = asyncio.Semaphore(ASKING)
        self._known: dict[str, Known] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, target: Target, revive: Revive) -> AsyncIterator[Visitors]:
        visitors = cls(target, revive)
        try:
            yield visitors
        finally:
            await visitors._close()

    async def lost(self, *, is_waited_for: bool) -> None:
        """The server went away: it is brought back where somebody waits for it, else by whoever comes next."""
        for known in self._known.values():
            known.is_doubted = True
        if is_waited_for:
            await self._revived()

    async def ourselves(self) -> Visitor:
        """Whoever runs this process. Raises: SandboxError."""
        return await self._visitor("", self._target)

    async def with_key(self, key: str) -> Visitor:
        """Whoever has this key. Raises: SandboxError; Unauthenticated when it is nobody's."""
        # A presented key decides alone; a certificate of ours must not speak for its bearer.
        target = dataclasses.replace(self._target, api_key=key, owner="", key=None, certificate=None)
        name = hashlib.sha256(key.encode()).hexdigest()
        known = self._known.get(name)
        if known is not None and known.was_good:
            return await self._visitor(name, target)
        async with self._asking:
            return await self._visitor(name, target)

    async def _visitor(self, name: str, target: Target) -> Visitor:
        while True:
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = Known(client=AsyncSandboxClient(target=target), mcp=McpCalls(target))
            if known.who is not None and known.is_fresh():
                return known.visitor(known.who)
            async with known.asking:
                if self._known.get(name) is known:
                    return await self._recognized(name, known)

    async def _recognized(self, name: str, known: Known) -> Visitor:
        who = known.who
        if who is None or not known.is_fresh():
            try:
                who = await self._asked(known)
            except BaseException as error:
                if isinstance(error, Unauthenticated):
                    known.who = None
                # One that was good once may be in somebody's hands still; there are only as many as there were keys.
                if not known.was_good:
                    del self._known[name]
                    await known.close()
                raise
            known.who, known.asked_at, known.is_doubted = who, time.monotonic(), False
        return known.visitor(who)

    async def _asked(self, known: Known) -> Identity:
        if known.is_doubted:
            await self._revived()
        try:
            # The SDK waits for a server to come back; one that is ours, and was dying a moment ago, would not.
            async with asyncio.timeout(ANSWER_S):
                return await known.client.whoami()
        except TimeoutError:
            await self._revived()
        except Unreachable:
            if not await self._revived():
                raise
        return await known.client.whoami()

    async def _revived(self) -> bool:
        async with self._reviving:
            return await self._revive()

    async def _close(self) -> None:
        known, self._known = list(self._known.values()), {}
        for each in known:
            await each.close()
