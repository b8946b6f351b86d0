"""What server and daemon say to each other: JSON lines over a socket that only root can reach.

A request `{"id", "do", …}` gets one answer `{"id", "ok"}` or `{"id", "error"}`. Decisions flow the other way after `follow`,
at once while the server reads; while it does not, the newest are kept and the others counted.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import SupportsIndex

from k8e.errors import K8eError
from k8e.model import Decision
from k8e.policy import wire

__all__ = ["LINE_BYTES", "VERSION", "Control", "CountingReader", "Fields", "dial", "encode"]

_log = logging.getLogger(__name__)

VERSION = 1
"""Raised when an older daemon would misunderstand a newer server."""
LINE_BYTES = 16 * 1024 * 1024
_KEPT = 10_000
_UNSENT_BYTES = 1024 * 1024
"""More than this waiting in a connection means that its reader does not keep up."""
_BACKLOG = 16

Fields = Mapping[str, object]
_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[str, Fields], Awaitable[object]]
"""From what to do and with what to the answer."""


def encode(message: Fields) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A socket's address holds 107 bytes, whatever the length of the data directory's name."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


class CountingReader(asyncio.StreamReader):
    """Knows how many bytes have come out of the socket, so that somebody can tell whether all of them were dealt with."""

    def __init__(self) -> None:
        super().__init__(limit=LINE_BYTES)
        self.received = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        piece = bytes(data)
        self.received += len(piece)
        super().feed_data(piece)


async def dial(path: Path) -> tuple[CountingReader, asyncio.StreamWriter]:
    """Raises: OSError when nobody is there."""
    loop, reader = asyncio.get_running_loop(), CountingReader()
    with _reachable(path) as address:
        transport, protocol = await loop.create_unix_connection(lambda: asyncio.StreamReaderProtocol(reader), address)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    _forget(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _reachable(path) as address:
        listener.bind(address)
    path.chmod(0o600)
    listener.setblocking(False)
    listener.listen(_BACKLOG)
    return listener


def _keeps_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether what is written now will be read; what hung up is known by its end of file before anything else.

    Whoever leaves something unread resets the connection instead, which is then closing and has no end of file.
    """
    is_there = not reader.at_eof() and not writer.is_closing()
    return is_there and writer.transport.get_write_buffer_size() < _UNSENT_BYTES


class Control:
    """The daemon's side: serves requests, and tells decisions to whoever asked for them last."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._kept: collections.deque[Decision] = collections.deque(maxlen=_KEPT)
        self._waiting = asyncio.Event()
        self._listener: _Ends | None = None
        self.dropped = 0

    def tell(self, decision: Decision) -> None:
        """Sent before this returns, if the server keeps up: it hears of a refusal before the sandbox does."""
        if self._listener is not None and not self._kept and _keeps_up(*self._listener):
            self._listener[1].write(encode({"decision": wire.decision_to_json(decision)}))
            return
        self.dropped += len(self._kept) == _KEPT
        self._kept.append(decision)
        self._waiting.set()

    @contextlib.asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        """Reachable at `path` inside the block."""
        server = await asyncio.start_unix_server(self._converse, sock=_listen(path), limit=LINE_BYTES)
        try:
            yield
        finally:
            server.close()
            _forget(path)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                telling = None
                with contextlib.suppress(OSError, ValueError):
                    while line := await reader.readline():
                        request = json.loads(line)
                        if request.get("do") == "follow" and telling is None:
                            telling = tasks.create_task(self._tell_kept((reader, writer)), name="decisions")
                        tasks.create_task(self._answer(request, writer), name=f"request {request.get('do')}")
                if telling is not None:
                    telling.cancel()
        finally:
            if self._listener is not None and self._listener[1] is writer:
                self._listener = None
            writer.close()

    async def _tell_kept(self, ends: _Ends) -> None:
        self._listener = ends
        with contextlib.suppress(OSError):
            while self._listener is ends and not ends[0].at_eof():
                while self._kept and _keeps_up(*ends):
                    ends[1].write(encode({"decision": wire.decision_to_json(self._kept.popleft())}))
                await ends[1].drain()
                if not self._kept:
                    self._waiting.clear()
                    await self._waiting.wait()

    async def _answer(self, request: Mapping[str, object], writer: asyncio.StreamWriter) -> None:
        try:
            answer: Fields = {"id": request.get("id"), "ok": await self._handle(str(request.get("do")), request)}
        except (K8eError, OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("a request failed", extra={"do": request.get("do"), "error": str(error)})
            answer = {"id": request.get("id"), "error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            writer.write(encode(answer))
            await writer.drain()
