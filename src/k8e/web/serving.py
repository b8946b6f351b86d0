"""The agents' HTTP door as a process: who is let in, what is served, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from starlette.routing import BaseRoute
from starlette.types import ASGIApp
from uvicorn import Config, Server

from k8e.client.discovery import Target
from k8e.identity.sockdiag import SocketTable
from k8e.web.app import built, mcp_route
from k8e.web.connections import CONNECTIONS_PER_PEER, BoundedConnection, SharedConnections
from k8e.web.gate import Gate
from k8e.web.guests import Guests
from k8e.web.mirror import PING_S
from k8e.web.presence import Patience
from k8e.web.provenance import Provenance, is_loopback
from k8e.web.visitors import Revive, Visitors

__all__ = ["DoorSettings", "listening", "serve"]

CONNECTIONS = 2 * CONNECTIONS_PER_PEER
"""At a time; further ones are told to come later. One that has all of its share leaves as much to the others."""
DESCRIPTORS = 4 * CONNECTIONS
DRAIN_S = 2
"""How long requests may go on when we are told to stop."""
BACKLOG = 256
PER_TURN = 16

Parting = Callable[[], None]
"""Called first of all when we are told to stop: whoever still listens can be told so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    requires_key: bool = False
    """Whether also our own user needs one."""
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    tenant_id: str = ""
    patience: Patience = field(default_factory=Patience)
    ping_s: float = PING_S
    has_mcp: bool = True
    has_a2a: bool = True
    public_url: str = ""
    """Where callers reach us, where a proxy stands before us."""


def listening(host: str, port: int) -> socket.socket:
    """The socket to serve on. Raises: OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.set_inheritable(False)
    return sock


async def serve(
    sock: socket.socket, target: Target, settings: DoorSettings, *, revive: Revive, ready: Callable[[], None]
) -> None:
    """Serve on the socket until a signal says to stop; `ready` is called when it answers."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(most, DESCRIPTORS)), most))
    partings: list[Parting] = []
    async with opened(sock, target, settings, revive, partings) as app:
        server = Process(config(app), ready, partings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        await server.serve(sockets=[sock])


class Process(Server):
    """uvicorn's server, which leaves signals to us: it would end the process before everybody has left."""

    def __init__(self, config: Config, ready: Callable[[], None], partings: Sequence[Parting]) -> None:
        super().__init__(config)
        self._connections = self.server_state = SharedConnections()
        self._ready = ready
        self._partings = partings

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            # For asyncio the length of the queue is also how many it takes before anybody else has a turn.
            sock.listen(BACKLOG)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for parting in self._partings:
            parting()
        await super().shutdown(sockets)
        self._connections.close()

    def stop(self) -> None:
        # The second time somebody is in a hurry.
        self.force_exit = self.should_exit
        self.should_exit = True


def config(app: ASGIApp) -> Config:
    return Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        backlog=PER_TURN,
        timeout_graceful_shutdown=DRAIN_S,
    )


@asynccontextmanager
async def opened(
    sock: socket.socket, target: Target, settings: DoorSettings, revive: Revive, partings: list[Parting]
) -> AsyncIterator[ASGIApp]:
    """The application, and everything that has to live as long as it does; it adds to the partings."""
    is_local = is_loopback(sock.getsockname()[0])
    provenance = Provenance(hosts=settings.hosts, origins=settings.origins, any_address=not is_local)
    async with contextlib.AsyncExitStack() as stack:
        sockets = stack.enter_context(contextlib.closing(SocketTable()))
        visitors = await stack.enter_async_context(Visitors.open(target, revive))
        # Whoever comes from elsewhere is nobody without a key, whatever was set.
        gate = Gate(visitors, provenance, sockets, uid=os.geteuid(), requires_key=settings.requires_key or not is_local)
        routes: list[BaseRoute] = []
        if settings.has_mcp:
            guests = await stack.enter_async_context(Guests.open(settings.patience, settings.tenant_id, visitors))
            routes.append(mcp_route(gate, guests, ping_s=settings.ping_s))
            partings.append(guests.end)
        if settings.has_a2a:
            routes += await stack.enter_async_context(a2a(gate, settings.public_url, partings))
        yield built(gate, routes)


@asynccontextmanager
async def a2a(gate: Gate, public_url: str, partings: list[Parting]) -> AsyncIterator[list[BaseRoute]]:
    from k8e.a2a.agent import Agent
    from k8e.a2a.routes import a2a_routes

    async with Agent.open() as agent:
        partings.append(agent.leave)
        yield [*a2a_routes(agent, gate, public_url=public_url)]
