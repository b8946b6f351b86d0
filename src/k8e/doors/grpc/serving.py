"""The door itself: one gRPC server, and the TLS front through which all addresses reach it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from k8e.doors.grpc.address import Address, Listening
from k8e.doors.grpc.front import Credentials, Front, FrontSettings
from k8e.doors.grpc.handlers import handlers
from k8e.doors.grpc.lobby import Lobby
from k8e.doors.grpc.tooling import add_tooling
from k8e.doors.service.edge import Edge
from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.identity import SocketTable

__all__ = ["Door", "serve"]

DRAIN_S = 5.0
FRONT = FrontSettings()
CALLS_OF_A_CONNECTION = 1024
"""At once; a client with more waits for one to end, or opens another connection."""
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
    # A connection that nobody uses is one that somebody else could have.
    ("grpc.max_connection_idle_ms", 30 * 60 * 1000),
)


@dataclass(frozen=True, slots=True)
class Door:
    bound: tuple[Address, ...]
    """The real addresses, in the order in which they were asked for."""
    renew: Callable[[Credentials], None]
    """Show another certificate to connections that come from now on."""


@asynccontextmanager
async def serve(
    edge: Edge,
    *,
    listening: Sequence[Listening],
    credentials: Credentials,
    directory: Path,
    settings: FrontSettings = FRONT,
    undrained: Callable[[], None] = lambda: None,
) -> AsyncIterator[Door]:
    """Serve at these until the block ends, which closes them; `directory` is private to the door.

    At the end running calls get a while to finish; then `undrained` may leave without cancelling them, because
    cancelling a call stops its command.
    """
    with Lobby.open(directory) as lobby, contextlib.closing(SocketTable()) as sockets:
        server = aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((handlers(edge, lobby),))
        health = add_tooling(server, edge, lobby)
        server.add_insecure_port(lobby.address)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                front = Front(lobby, credentials, group, settings, sockets)
                front.accept(itertools.chain.from_iterable(each.sockets for each in listening))
                await health.serving()
                try:
                    yield Door(tuple(each.address for each in listening), front.renew)
                finally:
                    front.close()
                    await health.stopping()
                    await drained(server, undrained)
                    front.cut()
        finally:
            for each in listening:
                each.close()
            await server.stop(None)


async def drained(server: aio.Server, undrained: Callable[[], None]) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            await server.stop(2 * DRAIN_S)
    except TimeoutError:
        undrained()
        await server.stop(None)
