"""The MCP clients of this door: each has a server of its own, and what it has made ends when it has been gone for long.

A client of the protocol's sessions is known by its session's id, a client of the older form by its token; both belong to
the identity that opened them, and are nobody's to everybody else. Clients that keep nothing share one guest per identity.
A guest acts with the credential it came with: who comes with another one, after a key was made anew, is a new guest.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.exceptions import HTTPException

from k8e.http_visitor import Visitor
from k8e.mcp.hosting import ClientScope, build_server
from k8e.web.calls import Calls
from k8e.web.echoes import Echoes
from k8e.web.lease import hold
from k8e.web.presence import Patience, Presence
from k8e.web.rooms import Room
from k8e.web.visitors import Visitors

__all__ = ["BODY_BYTES", "Guest", "Guests", "Kind"]

_log = logging.getLogger(__name__)

BODY_BYTES = 48 * 2**20
"""Of one request: as much as a line of the other transport."""
TOKEN_BYTES = 12
ENDING_S = 30.0
"""How long the server may take to end what a client has made."""
GUESTS = 256
"""Clients that one identity may have at a time."""


class Kind(Enum):
    """How a client is served."""

    SESSION = "a session of the protocol"
    PLAIN = "whole answers, nothing kept between them"
    MODERN = "answers as streams, nothing kept between them"


@dataclass(slots=True, kw_only=True, eq=False)
class Guest:
    """One client."""

    visitor: Visitor
    kind: Kind
    manager: StreamableHTTPSessionManager
    calls: Calls
    presence: Presence
    client_id: str
    token: str = ""
    echoes: Echoes = field(default_factory=Echoes)
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """It is gone, or told to go."""
        if not self.is_ended.is_set():
            self.is_ended.set()
            self.echoes.wake()


class Guests:
    """`open` it."""

    def __init__(self, tasks: asyncio.TaskGroup, patience: Patience, tenant_id: str, visitors: Visitors) -> None:
        self._tasks = tasks
        self._visitors = visitors
        self._patience = patience
        self._tenant_id = tenant_id
        self._by_token: dict[str, Guest] = {}
        self._shared: dict[tuple[str, Kind], Guest] = {}
        self._sharing = asyncio.Lock()
        self._all: set[Guest] = set()
        self._count: Counter[str] = Counter()
        self._rooms: dict[str, Room] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, patience: Patience, tenant_id: str, visitors: Visitors) -> AsyncIterator[Guests]:
        """At the end everybody is gone, and what they have made with them."""
        async with asyncio.TaskGroup() as tasks:
            guests = cls(tasks, patience, tenant_id, visitors)
            try:
                yield guests
            finally:
                guests.end()

    def end(self) -> None:
        """Everybody has to go."""
        for guest in list(self._all):
            guest.end()

    async def arrive(self, visitor: Visitor, kind: Kind) -> Guest:
        """A new client, ready to be served. Raises: HTTPException 503 when the identity has too many."""
        if self._count[visitor.identity] >= GUESTS:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{visitor.identity} has {GUESTS} clients here already")
        client_id = secrets.token_hex(16)
        scope = ClientScope(visitor.client, client_id, tenant_id=self._tenant_id)
        manager = managing(build_server(visitor.client, scope), kind)
        guest = Guest(
            visitor=visitor,
            kind=kind,
            manager=manager,
            calls=Calls(manager, self._rooms.setdefault(visitor.identity, Room())),
            presence=Presence(self._patience),
            client_id=client_id,
        )
        self._count[visitor.identity] += 1
        self._all.add(guest)
        self._tasks.create_task(self._own(guest), name=f"MCP client of {visitor.identity}")
        await guest.is_ready.wait()
        return guest

    async def shared(self, visitor: Visitor, kind: Kind) -> Guest:
        """The one guest of an identity's clients that keep nothing."""
        async with self._sharing:
            guest = serving(self._shared.get((visitor.identity, kind)), visitor)
            if guest is None:
                guest = self._shared[visitor.identity, kind] = await self.arrive(visitor, kind)
            return guest

    def name(self, guest: Guest, token: str = "") -> str:
        """Let a client be found again by a token, by whoever it belongs to."""
        guest.token = token or secrets.token_hex(TOKEN_BYTES)
        self._by_token[guest.token] = guest
        return guest.token

    def find(self, token: str, visitor: Visitor) -> Guest | None:
        """The client with this token, if it is this visitor's."""
        return serving(self._by_token.get(token), visitor)

    async def _own(self, guest: Guest) -> None:
        """Everything of one guest, from its first to its last moment; whoever asks only waits."""

        async def lost() -> None:
            await self._visitors.lost(is_waited_for=guest.presence.is_waiting)

        try:
            async with asyncio.TaskGroup() as tasks:
                holding = hold(guest.visitor.mcp, guest.client_id, guest.is_ended, lost)
                lease = tasks.create_task(holding, name="lease")
                # A client that the server does not want is nobody's to serve.
                lease.add_done_callback(lambda _: guest.end())
                leaving = tasks.create_task(guest.presence.gone(), name="presence")
                leaving.add_done_callback(lambda _: guest.end())
                async with guest.manager.run():
                    guest.is_ready.set()
                    await guest.is_ended.wait()
                leaving.cancel()
                await asyncio.wait({lease}, timeout=ENDING_S)
                lease.cancel()
        except Exception:  # noqa: BLE001 - the edge of one client: the others go on
            _log.exception("an MCP client ends unexpectedly", extra={"identity": guest.visitor.identity})
        finally:
            self._forget(guest)

    def _forget(self, guest: Guest) -> None:
        guest.is_ready.set()
        guest.end()
        self._all.discard(guest)
        self._count[guest.visitor.identity] -= 1
        if not self._count[guest.visitor.identity]:
            del self._count[guest.visitor.identity]
            self._rooms.pop(guest.visitor.identity, None)
        self._by_token.pop(guest.token, None)
        if self._shared.get((guest.visitor.identity, guest.kind)) is guest:
            del self._shared[guest.visitor.identity, guest.kind]


def serving(guest: Guest | None, visitor: Visitor) -> Guest | None:
    """The guest, where it can serve this visitor; one whose key was made anew since has to go."""
    if guest is None or guest.visitor.identity != visitor.identity:
        return None
    if guest.visitor.client is not visitor.client:
        guest.end()
    return None if guest.is_ended.is_set() else guest


def managing(server: Server[Any], kind: Kind) -> StreamableHTTPSessionManager:
    """How the protocol's library serves a client of this kind; who may come in is the gate's business."""
    return StreamableHTTPSessionManager(
        server,
        stateless=kind is not Kind.SESSION,
        json_response=kind is Kind.PLAIN,
        session_idle_timeout=None,
        max_sessions=1,
        max_request_body_size=BODY_BYTES,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
