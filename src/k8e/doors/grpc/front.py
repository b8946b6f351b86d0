"""The TLS front of the gRPC door: takes connections, proves certificates, and hands the bytes on.

A client certificate is optional; one that is shown must come from our own authority, or the handshake fails. A
handshake has a bounded time and connections a bounded number, and so have those of one user of this machine or of one
address elsewhere. A connection is a stranger's until one of its calls was admitted; where there is no room left, the
stranger that came first makes room, of whoever has the most: so that strangers cannot hold the door, and nobody's can
drive out another's that are about to be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from k8e.doors.grpc.address import plain
from k8e.doors.grpc.lobby import Lobby
from k8e.doors.grpc.relay import Side, joined
from k8e.identity import SocketTable, TcpPeer
from k8e.identity.sockdiag import Endpoint
from k8e.pending_connections import PendingConnections

__all__ = ["Credentials", "Front", "FrontSettings", "tls_context"]

_log = logging.getLogger(__name__)

SHUTDOWN_S = 5.0
PAUSE_S = 0.1
# A peer that went away without a word is found out after about two minutes.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class Credentials(Protocol):
    """PEM texts of the server's certificate, and of the authority whose client certificates are good."""

    @property
    def key(self) -> bytes: ...
    @property
    def chain(self) -> bytes: ...
    @property
    def ca(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    handshake_s: float = 10.0
    connections: int = 4096
    """At once, over all addresses; beyond that a stranger goes for each that comes, or else the one that comes."""
    connections_per_peer: int = 2048
    """Of one user or address, likewise."""


class Front:
    """All listening addresses of the door. Tasks live in `group`, which the caller owns."""

    def __init__(
        self,
        lobby: Lobby,
        credentials: Credentials,
        group: asyncio.TaskGroup,
        settings: FrontSettings,
        sockets: SocketTable,
    ) -> None:
        self._lobby = lobby
        self._group = group
        self._settings = settings
        self._sockets = sockets
        self._context = tls_context(credentials)
        self._accepting: list[asyncio.Task[None]] = []
        self._carrying: dict[asyncio.Task[None], str] = {}
        self._by_holder: Counter[str] = Counter()
        self._strangers: PendingConnections[asyncio.Task[None]] = PendingConnections(each=0, all=0)

    def renew(self, credentials: Credentials) -> None:
        """Show another certificate to connections that come from now on."""
        self._context = tls_context(credentials)

    def accept(self, listeners: Iterable[socket.socket]) -> None:
        """Take connections on these sockets, too."""
        for each in listeners:
            task = self._group.create_task(self._accept(each), name=f"accept on {each.getsockname()}")
            self._accepting.append(task)

    def close(self) -> None:
        """Take no more connections; those that stand go on."""
        for task in self._accepting:
            task.cancel()

    def cut(self) -> None:
        """End every connection."""
        for task in self._carrying:
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("cannot take a connection", extra={"errno": error.errno})
                await asyncio.sleep(PAUSE_S)
                continue
            self._receive(accepted)
            # While more of them wait, taking one does not: everybody else has a turn in between.
            await asyncio.sleep(0)

    def _receive(self, accepted: socket.socket) -> None:
        try:
            source, target = plain(accepted.getpeername()), plain(accepted.getsockname())
        except OSError:  # it is gone already
            accepted.close()
            return
        holder = self._sockets.holder_of(source=source, target=target)
        if not self._has_room(holder):
            accepted.close()
            return
        task = self._group.create_task(self._carry(accepted, source, target), name="gRPC connection")
        self._carrying[task] = holder
        self._by_holder[holder] += 1
        self._strangers.add(holder, task)
        task.add_done_callback(self._forget)
        # Also where it had to go before its first step.
        task.add_done_callback(lambda _task: accepted.close())

    def _has_room(self, holder: str) -> bool:
        if self._by_holder[holder] >= self._settings.connections_per_peer:
            return self._has_sent_away(self._strangers.pop(holder))
        return len(self._carrying) < self._settings.connections or self._has_sent_away(self._strangers.pop())

    def _has_sent_away(self, stranger: asyncio.Task[None] | None) -> bool:
        if stranger is None:
            return False
        stranger.cancel()
        self._forget(stranger)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        holder = self._carrying.pop(task, None)
        if holder is None:
            return
        self._strangers.discard(holder, task)
        self._by_holder[holder] -= 1
        if not self._by_holder[holder]:
            del self._by_holder[holder]

    async def _carry(self, accepted: socket.socket, source: Endpoint, target: Endpoint) -> None:
        """One connection from its handshake to its end; whatever goes wrong with it is its own affair."""
        near, far = Side(), Side()
        known = functools.partial(self._known, asyncio.current_task())
        try:
            with contextlib.closing(accepted), closed(near):
                keep_alive(accepted)
                certificate = await self._handshake(near, accepted)
                async with self._lobby.entered(TcpPeer(source, target, certificate), known=known) as connection:
                    with closed(far):
                        await asyncio.get_running_loop().create_unix_connection(lambda: far, sock=connection)
                        await joined(near, far)
        except OSError as error:
            _log.debug("connection failed", extra={"reason": str(error)})

    def _known(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and task in self._carrying:
            self._strangers.discard(self._carrying[task], task)

    async def _handshake(self, near: Side, accepted: socket.socket) -> bytes | None:
        """Speak TLS; the client's certificate in DER, where it showed one. Raises: OSError."""
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: near,
            accepted,
            ssl=self._context,
            ssl_handshake_timeout=self._settings.handshake_s,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True)


@contextlib.contextmanager
def closed(side: Side) -> Iterator[None]:
    """Leave no transport behind, however the block ends."""
    try:
        yield
    finally:
        if side.transport is not None and not side.ended.is_set():
            side.transport.abort()


def keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def tls_context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # SAFETY: nobody resumes a session, so every connection proves its certificate itself.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=credentials.ca.decode())
    # The library loads a certificate and its key only from a file; this one is nobody else's and soon gone.
    with tempfile.NamedTemporaryFile() as file:
        file.write(credentials.key + credentials.chain)
        file.flush()
        context.load_cert_chain(file.name)
    return context
