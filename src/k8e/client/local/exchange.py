"""One connection to the server's unix socket, and one HTTP/1.1 exchange on it.

What the bytes mean is written once, in `light.http`; here they are awaited. Straight from the socket, because the two
directions must not know of each other: a server that has answered may stop listening, and its answer must still be read.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping

from k8e.client.light.http import (
    LINE,
    Envelopes,
    LostConnectionError,
    announced_size,
    header_pairs,
    request_head,
    status_of,
)
from k8e.client.light.unix import CONNECT_S, STEP_S, connected

__all__ = ["Exchange", "dial"]

READ_BYTES = 256 * 1024
NO_ROOM = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE})


class Exchange:
    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._under_way = 0
        """Reads and writes: the loop knows their socket by its number, so it is closed after the last of them."""
        self._is_over = False
        self._arrived = bytearray()
        self._answer: Mapping[str, str] = {}
        self._envelopes = Envelopes()
        self._whole: collections.deque[tuple[int, bytes]] = collections.deque()

    async def send_head(self, path: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Begin the request; None as its body says that pieces will follow."""
        # It may have answered before it stopped listening; if not, reading tells.
        with contextlib.suppress(LostConnectionError):
            await self._send(request_head(path, headers, body) + (body or b""))

    async def send_piece(self, piece: bytes) -> None:
        """Waits while the server is slow to take it. Raises: LostConnectionError."""
        await self._send(b"%x\r\n%s\r\n" % (len(piece), piece))

    async def end_pieces(self) -> None:
        """Raises: LostConnectionError."""
        await self._send(b"0\r\n\r\n")

    async def receive_head(self) -> tuple[int, Mapping[str, str]]:
        """The answer's status and headers. Raises: LostConnectionError."""
        first, *lines = (await self._until(b"\r\n\r\n")).split(b"\r\n")
        status, self._answer = status_of(first), dict(header_pairs(lines))
        return status, self._answer

    async def receive_all(self) -> bytes:
        """The answer's body. Raises: LostConnectionError."""
        pieces = []
        while piece := await self._piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def receive_envelope(self) -> tuple[int, bytes]:
        """The next one, with its flags. Raises: LostConnectionError."""
        while not self._whole:
            piece = await self._piece()
            if not piece:
                raise LostConnectionError("the stream ended before its end was told")
            self._whole.extend(self._envelopes.feed(piece))
        return self._whole.popleft()

    def hang_up(self) -> None:
        """End it at once, which ends its call; also where a forked child has the same connection open."""
        if not self._is_over:
            self._is_over = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # which wakes whoever reads or writes
            self._close_when_idle()

    async def _piece(self) -> bytes:
        """The next bytes of the body; none at its end."""
        if self._answer.get("transfer-encoding", "").lower() == "chunked":
            size = announced_size((await self._until(b"\r\n")).partition(b";")[0].decode("latin-1"), 16)
            return (await self._exactly(size + 2))[:-2]
        size, self._answer = announced_size(self._answer.get("content-length", "0"), 10), {}
        return await self._exactly(size)

    async def _until(self, mark: bytes) -> bytes:
        while (at := self._arrived.find(mark)) < 0:
            if len(self._arrived) > LINE:
                raise LostConnectionError("what answers there does not speak HTTP")
            await self._more()
        return self._taken(at, len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self._arrived) < size:
            await self._more()
        return self._taken(size)

    def _taken(self, size: int, mark: int = 0) -> bytes:
        taken = bytes(memoryview(self._arrived)[:size])
        del self._arrived[: size + mark]
        return taken

    async def _more(self) -> None:
        with self._at_work():
            piece = await self._loop.sock_recv(self._connection, READ_BYTES)
        if not piece:
            raise LostConnectionError("the connection was closed")
        self._arrived += piece

    async def _send(self, data: bytes) -> None:
        with self._at_work():
            await self._loop.sock_sendall(self._connection, data)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Raises: LostConnectionError."""
        if self._is_over:
            raise LostConnectionError("the connection was closed")
        self._under_way += 1
        try:
            yield
        except OSError as error:
            raise LostConnectionError(error.strerror or str(error)) from error
        finally:
            self._under_way -= 1
            self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._is_over and not self._under_way:
            self._connection.close()


async def dial(path: str) -> Exchange:
    """A new connection, waited for where there is no room for another, there or here. Raises: OSError."""
    loop = asyncio.get_running_loop()
    end = loop.time() + CONNECT_S
    while True:
        try:
            # asyncio would take a full queue for a connection that is under way.
            if connection := connected(path):
                return Exchange(connection)
            trouble: OSError = BlockingIOError(errno.EAGAIN, "it takes no more connections for now")
        except OSError as error:
            trouble = error
        if trouble.errno not in NO_ROOM or loop.time() > end:
            raise trouble
        await asyncio.sleep(STEP_S)
