"""One page over HTTP on a loopback address: `GET /metrics`, and nothing else.

It tells nothing about anybody, so every local user may read it; a web page in a browser may not, whatever name it
has given our address. Nobody can take it from the others: a user has a share of the connections, and where there is no
room the one that has been there longest goes, of that user or of the one who has the most.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from k8e.identity.sockdiag import SocketTable
from k8e.pending_connections import PendingConnections

__all__ = ["serve"]

_log = logging.getLogger(__name__)

_HEAD_BYTES: Final = 8 * 1024
_READ_S: Final = 5.0
_AT_ONCE: Final = 32
_PER_USER: Final = 16
_PER_TURN: Final = 4
_QUEUE: Final = 128
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Render = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def serve(render: Render, host: str, port: int) -> AsyncIterator[str | None]:
    """Serve until the block ends; yields the page's address, or None where it cannot be had, which is logged.

    Numbers are a convenience: a port that is taken must not stop the server.
    """
    with contextlib.closing(SocketTable()) as sockets:
        page = _Page(render, sockets)
        try:
            sock = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            _log.warning(
                "no metrics: their address cannot be had", extra={"host": host, "port": port, "error": str(error)}
            )
            yield None
            return
        server = await asyncio.start_server(page.answer, sock=sock, limit=_HEAD_BYTES, backlog=_PER_TURN)
        # For asyncio the length of the queue is also how many it takes before anybody else has a turn.
        sock.listen(_QUEUE)
        async with server:
            bound = server.sockets[0].getsockname()[1]
            try:
                yield f"http://{f'[{host}]' if ':' in host else host}:{bound}/metrics"
            finally:
                page.hang_up()


class _Page:
    def __init__(self, render: Render, sockets: SocketTable) -> None:
        self._render = render
        self._sockets = sockets
        self._open: set[asyncio.StreamWriter] = set()
        self._pending: PendingConnections[asyncio.StreamWriter] = PendingConnections(each=_PER_USER, all=_AT_ONCE)
        self._answered: PendingConnections[asyncio.StreamWriter] = PendingConnections(each=_PER_USER, all=_AT_ONCE)

    def hang_up(self) -> None:
        for writer in self._open:
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, target = (writer.get_extra_info(end) for end in ("peername", "sockname"))
        if not source or not target:  # it is gone already
            writer.close()
            return
        holder = self._sockets.holder_of(source=source[:2], target=target[:2])
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_READ_S):
                    with _among(self._pending, holder, writer):
                        head = await reader.readuntil(b"\r\n\r\n")
                    with _among(self._answered, holder, writer):
                        writer.write(await self._response(head))
                        await writer.drain()
        finally:
            self._open.discard(writer)
            writer.close()

    async def _response(self, head: bytes) -> bytes:
        line, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != "/metrics":
            return _page("404 Not Found", b"look at /metrics\n")
        if method != "GET":
            return _page("405 Method Not Allowed", b"only GET\n")
        if not _is_local(fields):
            return _page("403 Forbidden", b"ask by a loopback address, and not from a web page\n")
        return _page("200 OK", await self._render())


@contextlib.contextmanager
def _among(
    pending: PendingConnections[asyncio.StreamWriter], holder: str, writer: asyncio.StreamWriter
) -> Iterator[None]:
    """One of those, while the block lasts or until it has to make room, which ends its connection."""
    leaving = pending.add(holder, writer)
    if leaving is not None:
        leaving.transport.abort()
    try:
        yield
    finally:
        pending.discard(holder, writer)


def _is_local(fields: list[str]) -> bool:
    """Whether the page was asked for by our own address: a name can be anybody's."""
    sent = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    host = sent.get("host", "localhost")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if "origin" in sent:
        return False
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _page(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
