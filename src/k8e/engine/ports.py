"""Connections to TCP ports inside a session's sandbox; nothing is held here but the piece on its way.

What a caller has not taken is not acknowledged, so a slow reader slows the server inside, and a slow server its writer.
A connection belongs to one link: when that is lost, the connection has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from k8e.engine.boxes import Box
from k8e.engine.process_stream import remote_failure
from k8e.engine.session import Session, Use
from k8e.errors import Conflict, Exhausted, HostUnsupported, InvalidSpec, K8eError, SandboxFailed, SandboxLost
from k8e.wire.aio import Data, Event, LinkLost, RemoteError, Stream

__all__ = ["PortConnection", "Ports"]

_IN: Final = 0
_OUT: Final = 1
_MAX_PORT: Final = 65535
_CONNECT_TIMEOUT_S: Final = 30.0
"""The agent gives up after ten seconds; one that says nothing for so long is not to be believed any more."""


class Ports:
    """Opens connections, and counts those of each session."""

    def __init__(self, *, per_session: int) -> None:
        self._per_session = per_session

    async def open(self, session: Session, port: int) -> PortConnection:
        """Connect to a server on the sandbox's loopback.

        Raises: InvalidSpec, Conflict when nobody listens, Exhausted, SandboxLost, SandboxFailed.
        """
        if not 0 < port <= _MAX_PORT:
            raise InvalidSpec(f"must be 1-{_MAX_PORT}", field="port")
        if session.ports >= self._per_session:
            raise Exhausted(
                f"session {session.session_id} already has {session.ports} connections to its ports: close one, or "
                "have the server's operator raise ports_per_session"
            )
        connection = PortConnection(session, session.live_box(), port)
        try:
            await connection.connect()
        except BaseException:
            await connection.close()
            raise
        return connection


class PortConnection:
    """One connection. Receive in one place only; send and receive at the same time, or each side waits for the other."""

    def __init__(self, session: Session, box: Box, port: int) -> None:
        self.port = port
        self._session = session
        self._box = box
        self._stream: Stream | None = None
        self._unacked = 0
        self._is_read_over = False
        self._is_closed = False
        # From now on, or many that are opened at once would each find room.
        self._use = Use(session)
        session.ports += 1

    async def connect(self) -> None:
        """Ask the agent; `Ports.open` does."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                self._stream = await (await self._box.link()).open("tcp", {"port": self.port})
                answer = await self._stream.receive()
        except (RemoteError, LinkLost) as error:
            raise await self._failure(error) from error
        except TimeoutError as error:
            raise SandboxFailed(f"connect to port {self.port}", "the sandbox's agent does not answer") from error
        if not isinstance(answer, Event) or answer.name != "connected":
            raise _nonsense("something else than a connection")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await self.receive():
            yield piece

    async def receive(self) -> bytes:
        """The next piece, or nothing once the server has sent all. Raises: Conflict, SandboxLost, SandboxFailed."""
        if self._is_read_over:
            return b""
        item = await self._next()
        if isinstance(item, Data) and item.channel == _OUT and item.payload:
            self._unacked = item.offset + len(item.payload)
            return item.payload
        if isinstance(item, Event) and item.name == "eof" and item.fields.get("channel") == _OUT:
            self._is_read_over = True
            return b""
        raise _nonsense("what no connection says")

    async def ended(self) -> None:
        """Wait until both directions have ended, when all was received. Raises: Conflict, SandboxLost, SandboxFailed."""
        if not self._is_read_over or await self._next() is not None:
            raise _nonsense("more after the end of a connection")

    async def _next(self) -> Data | Event | None:
        stream = self._opened()
        try:
            if self._unacked:
                stream.ack(_OUT, self._unacked)
                self._unacked = 0
            return await stream.receive()
        except (RemoteError, LinkLost) as error:
            raise await self._failure(error) from error

    async def send(self, data: bytes) -> None:
        """Waits while the server does not read. Raises: Conflict once it has ended, SandboxLost, SandboxFailed."""
        try:
            await self._opened().send(_IN, data)
        except (RemoteError, LinkLost) as error:
            raise await self._failure(error) from error

    async def send_eof(self) -> None:
        """No more from this side; the server may still answer. Raises: Conflict, SandboxLost, SandboxFailed."""
        try:
            await self._opened().finish(_IN)
        except (RemoteError, LinkLost) as error:
            raise await self._failure(error) from error

    async def close(self) -> None:
        """Hang up; safe to repeat. Unless `send_eof` was said, the server sees a reset."""
        if self._is_closed:
            return
        self._is_closed = True
        self._use()
        self._session.ports -= 1
        if self._stream is not None:
            with contextlib.suppress(LinkLost):
                await self._stream.cancel()

    def _opened(self) -> Stream:
        if self._stream is None or self._is_closed:
            raise Conflict(f"the connection to port {self.port} is closed")
        return self._stream

    async def _failure(self, error: RemoteError | LinkLost) -> K8eError:
        """What ended it, in our own tree; of the agent's words only the code is used where we know better ones."""
        if isinstance(error, LinkLost):
            found = await self._box.unreachable(error)
            if isinstance(found, SandboxLost):
                return found
            return SandboxFailed(f"the connection to port {self.port} was cut", "the link to its sandbox was lost")
        match error.code:
            case "refused":
                return Conflict(
                    f"nothing listens on port {self.port} inside: start the server first, on 127.0.0.1 or 0.0.0.0"
                )
            case "timed_out":
                return Conflict(
                    f"the server on port {self.port} inside does not accept connections: it is busy, or hangs"
                )
            case "reset":
                return Conflict(f"the server on port {self.port} inside has closed the connection")
            case "invalid" if "unknown operation" in error.message:
                return HostUnsupported("this sandbox is older than connections to ports: create another session")
            case _:
                return remote_failure(error, kind="port", name=str(self.port))


def _nonsense(what: str) -> SandboxFailed:
    return SandboxFailed("the sandbox's agent answered nonsense", what)
