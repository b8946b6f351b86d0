"""Calls that reach servers inside a sandbox: one connection as an object, and a local port that leads to one inside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import Conflict, DeadlineExceeded, SandboxError, ServerFailed
from k8e.client.transport import QUICK_S, Transport

__all__ = ["AsyncForward", "AsyncPortConnection", "PortCalls"]

PIECE = 64 * 1024
CLOSE_S = 10.0
"""How long the end of a connection may take that both sides have ended."""
BACKLOG = 128
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class PortCalls(Transport):
    async def open_port(self, session_id: str, port: int) -> AsyncPortConnection:
        """Connect to a server that listens inside, on 127.0.0.1 or every address. Raises: Conflict when none does."""
        given = Input(port)
        await given.put(pb.PortInput(start=pb.PortStart(session_id=session_id, port=port)))
        connection = AsyncPortConnection(port, given, self._each(self._stub.OpenPort(given.messages())))
        try:
            async with asyncio.timeout(QUICK_S):
                await connection.connected()
        except TimeoutError as error:
            await connection.close()
            raise DeadlineExceeded(f"the server did not connect to port {port} within {QUICK_S:.0f} s") from error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def forward(
        self,
        session_id: str,
        remote_port: int,
        local_port: int = 0,
        *,
        address: str = "127.0.0.1",
        on_error: Callable[[SandboxError], None] | None = None,
    ) -> AsyncForward:
        """Listen on this machine, and carry each connection to a port inside; `port` of the result is the local one.

        A connection that cannot be made inside, or is lost, is cut, told to `on_error`, and costs no other.
        Raises: OSError when the local port is taken or not allowed.
        """
        forward = AsyncForward(self, session_id, remote_port, on_error or _unheard)
        await forward.listen(address, local_port)
        return forward


def _unheard(error: SandboxError) -> None:
    """The connection is cut; nobody asked to hear why."""


class Input:
    """What is on its way to the server: one message at a time, so whoever sends waits for the network."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._message: pb.PortInput | None = None
        self._is_over = False
        self._changed = asyncio.Event()

    async def messages(self) -> AsyncIterator[pb.PortInput]:
        """What the transport sends; it stops asking when the call is over."""
        try:
            while not self._is_over:
                if self._message is None:
                    await self._changed.wait()
                    continue
                message, self._message = self._message, None
                self._wake()
                yield message
        finally:
            self.end()

    async def put(self, message: pb.PortInput) -> None:
        """Raises: Conflict when nobody takes it any more."""
        while self._message is not None and not self._is_over:
            await self._changed.wait()
        if self._is_over:
            raise Conflict(f"the connection to port {self._port} has ended: receiving says why")
        self._message = message
        self._wake()

    def end(self) -> None:
        """Nothing more is sent, also nothing that waits."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class AsyncPortConnection:
    """A connection to a server inside. Receive while you send: as with every connection, a full one waits."""

    def __init__(self, port: int, given: Input, outputs: AsyncIterator[pb.PortOutput]) -> None:
        self.port = port
        self._given = given
        self._arrived: asyncio.Queue[pb.PortOutput | SandboxError | None] = asyncio.Queue(1)
        self._end: SandboxError | None = None
        self._is_read_over = False
        self._is_write_over = False
        self._is_closed = False
        # Born outside a group because a connection is an object that its user holds; it ends with the connection.
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read(outputs), name=f"answers of port {port}")

    async def _read(self, outputs: AsyncIterator[pb.PortOutput]) -> None:
        """One message ahead, so that also whoever only sends learns of the end."""
        end: SandboxError | None = None
        try:
            async with contextlib.aclosing(outputs) as messages:  # type: ignore[type-var]  # `_each` is a generator
                async for message in messages:
                    await self._arrived.put(message)
        except SandboxError as error:
            end = error
        self._given.end()
        await self._arrived.put(end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connected(self) -> None:
        """Wait for the connection; `open_port` does."""
        first = await self._next()
        if first is None or first.WhichOneof("output") != "connected":
            raise ServerFailed(f"the server answered something else than a connection to port {self.port}")

    async def receive(self) -> bytes:
        """The next bytes as they come, or b"" once the server has sent all.

        Raises: Conflict when the server cut it, SandboxLost, ServerFailed.
        """
        if self._is_read_over and not self._end:
            return b""
        message = await self._next()
        if message is None or message.eof:
            self._is_read_over = True
            return b""
        return message.data

    async def ended(self) -> None:
        """Wait until both sides have sent all, when all was received. Raises as `receive`."""
        await self._next()

    async def _next(self) -> pb.PortOutput | None:
        if self._end is not None:
            raise self._end
        message = await self._arrived.get()
        if isinstance(message, SandboxError):
            self._end = message
            raise message
        if message is None:
            self._is_read_over = True
        return message

    async def send(self, data: bytes) -> None:
        """Waits while the server does not read. Raises: ValueError after `send_eof`, Conflict once it has ended."""
        if self._is_write_over:
            raise ValueError("nothing can be sent after send_eof")
        for start in range(0, len(data), PIECE):
            await self._given.put(pb.PortInput(data=data[start : start + PIECE]))

    async def send_eof(self) -> None:
        """The server reads end-of-file, and may still answer; once is enough."""
        if not self._is_write_over:
            self._is_write_over = True
            await self._given.put(pb.PortInput(eof=True))

    async def close(self) -> None:
        """Hang up; once is enough. What was sent arrives for sure only after `send_eof`: without it, it is a reset."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_read_over and self._is_write_over:
            # The last of it may be on its way, and then the call ends by itself.
            await asyncio.wait([self._reading], timeout=CLOSE_S)
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._given.end()
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self._arrived.put_nowait(Conflict(f"the connection to port {self.port} is closed"))


class AsyncForward:
    """A port of this machine that leads to one inside, until it is closed."""

    def __init__(
        self, calls: PortCalls, session_id: str, remote_port: int, on_error: Callable[[SandboxError], None]
    ) -> None:
        self.session_id = session_id
        self.remote_port = remote_port
        self.port = 0
        self._calls = calls
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def listen(self, address: str, port: int) -> None:
        """Begin; `forward` does. Raises: OSError."""
        self._server = await asyncio.start_server(self._carried, address, port, limit=PIECE, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and cut what is connected; once is enough."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        if carrying:
            await asyncio.wait(carrying)
        await server.wait_closed()

    async def _carried(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
        try:
            async with await self._calls.open_port(self.session_id, self.remote_port) as connection:
                await _piped(reader, writer, connection)
            writer.close()
        except (SandboxError, OSError, asyncio.CancelledError) as error:
            # What was cut must not look like the whole of it.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            writer.transport.abort()
            # Of what went wrong on this side its own end knows; and a forward that is closed is no error.
            if isinstance(error, SandboxError):
                self._on_error(error)


async def _piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: AsyncPortConnection) -> None:
    """Both directions to their ends. Raises: SandboxError, OSError."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_sent(reader, connection), name="to the sandbox")
            group.create_task(_received(connection, writer), name="from the sandbox")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first cancelled the other


async def _sent(reader: asyncio.StreamReader, connection: AsyncPortConnection) -> None:
    with contextlib.suppress(Conflict):  # receiving says why
        while data := await reader.read(PIECE):
            await connection.send(data)
        await connection.send_eof()


async def _received(connection: AsyncPortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.receive():
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await connection.ended()
