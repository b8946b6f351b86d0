"""The engine's end of a link: asyncio streams over any byte transport to an agent that is never trusted.

Guarantees: a dial returns only after the agent's hello, because a full backlog also looks like success; a hostile or
broken agent ends its own link with `ProtocolError` and costs at most one window per channel of each open stream;
every waiting call wakes with `LinkLost` when the link dies.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .frames import Decoder, ProtocolError
from .items import Data, Ended, Event, Finished, Hello, Resumed
from .mux import Mux
from .outbox import Outbox, window

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

    from .items import Item, Json

__all__ = [
    "Connect",
    "Credentials",
    "Data",
    "DialRefused",
    "Event",
    "Link",
    "LinkLost",
    "ProtocolError",
    "RemoteError",
    "Stream",
]

Connect = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[object]]
"""Opens a byte transport and gives it to the protocol that it is handed."""

_OUTPUT_BYTES = 512 * 1024
_MANY_ITEMS = 256
"""That wait in one stream; up to here pieces of different channels are received in the order in which they came."""
_SMALL_BYTES = 4096
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a dialer shows in its first frame."""

    secret: str
    """Of this one sandbox; empty where the transport has proven who dials."""
    epoch: int
    """The agent obeys the highest that it has seen and refuses lower ones; equal ones are one owner that dials again."""
    is_follower: bool = False
    """Only to read, beside the owner and other followers."""
    sandbox: str = ""
    """Which one is meant, where the transport does not say: over TCP an address may be another's by now."""

    def __repr__(self) -> str:
        return f"Credentials(epoch={self.epoch}, is_follower={self.is_follower})"

    def fields(self) -> Mapping[str, Json]:
        role = "follower" if self.is_follower else "owner"
        return {"secret": self.secret, "epoch": self.epoch, "role": role, "sandbox": self.sandbox}


class DialRefused(Exception):  # named by what happened, as the rest of the tree
    """The agent does not serve this dialer; `is_superseded` when that is because another one owns the sandbox now."""

    def __init__(self, reason: str, *, is_superseded: bool) -> None:
        super().__init__(reason)
        self.is_superseded = is_superseded


class RemoteError(Exception):
    """The agent refused or failed; `code` is one of a closed set of words, `message` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class LinkLost(Exception):  # named by what happened, as the rest of the tree
    """The link died before the stream ended."""


class Stream:
    """One operation under way in the agent."""

    def __init__(self, core: _Core, number: int) -> None:
        self._core = core
        self._number = number
        self._items: deque[Data | Event | Ended] = deque()
        self._newest: dict[int, Data] = {}
        """Of each channel what came last, as long as nobody has received it."""
        self._outboxes: dict[int, Outbox] = {}
        self._resumed: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._ended: Ended | None = None

    async def receive(self) -> Data | Event | None:
        """The next thing the agent said; None once the stream ended well.

        Raises:
            RemoteError: the stream ended with an error.
            LinkLost: the link died first.
        """
        while not self._items:
            if self._ended is not None:
                return None
            await self._change()
        item = self._items.popleft()
        if isinstance(item, Data) and self._newest.get(item.channel) is item:
            del self._newest[item.channel]
        if isinstance(item, Ended):
            self._ended = item
            if item.error is not None:
                raise RemoteError(*item.error)
            return None
        if isinstance(item, Event):
            self._core.consume(self._number)
        return item

    @property
    def has_news(self) -> bool:
        """Whether the agent has said something that nobody has received yet; an end does not count."""
        return any(not isinstance(each, Ended) for each in self._items)

    def ack(self, channel: int, offset: int) -> None:
        """Everything of `channel` before `offset` is delivered: the agent may forget it and send more."""
        self._core.mux.ack(self._number, channel, offset)
        self._core.flush_soon()

    async def send(self, channel: int, data: bytes) -> None:
        """Hand over all of `data`, waiting while the agent has a full window of it unacknowledged.

        Raises:
            LinkLost: the link died first.
        """
        outbox = self._outbox(channel)
        view = memoryview(data)
        while len(view):
            while outbox.room <= 0:
                self._check_open()
                await self._change()
            self._check_open()
            piece = view[: outbox.room]
            outbox.append(bytes(piece))
            self._grown()
            view = view[len(piece) :]

    async def finish(self, channel: int) -> None:
        """End of file on `channel`."""
        self._check_open()
        self._outbox(channel).finish()
        self._grown()

    async def cancel(self) -> None:
        """Detach: the agent stops sending for this stream; a command goes on."""
        self._core.cancel(self._number)

    def unacknowledged(self, channel: int) -> tuple[int, bytes]:
        """What was sent on `channel` and may be lost with the link: its first offset and the bytes."""
        outbox = self._outbox(channel)
        pieces, offset = [], outbox.base
        while offset < outbox.end:
            pieces.append(bytes(outbox.read(offset, outbox.limit)))
            offset += len(pieces[-1])
        return outbox.base, b"".join(pieces)

    @property
    def result(self) -> Mapping[str, Json]:
        """What the agent returned at a good end."""
        return self._ended.result if self._ended is not None else _NOTHING

    def _check_open(self) -> None:
        self._core.check()
        if self._ended is not None or not self._core.mux.has_stream(self._number):
            raise RemoteError("conflict", "the stream has ended")

    def _outbox(self, channel: int) -> Outbox:
        outbox = self._outboxes.get(channel)
        if outbox is None:
            outbox = self._outboxes[channel] = Outbox(window(channel), self._resumed.get(channel, 0))
            if self._core.mux.has_stream(self._number):
                self._core.mux.attach(self._number, channel, outbox, is_resumed=channel in self._resumed)
        return outbox

    def _grown(self) -> None:
        self._core.mux.wake(self._number)
        self._core.flush_soon()

    async def _change(self) -> None:
        self._core.check()
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._changed.set()

    def deliver(self, item: Item) -> None:
        """Called by the link for each item of this stream."""
        if isinstance(item, Resumed):
            self._resumed[item.channel] = item.offset
        elif isinstance(item, Finished):
            self._items.append(Event("eof", {"channel": item.channel, "offset": item.offset}))
        elif isinstance(item, Data):
            self._keep(item)
        elif isinstance(item, Event | Ended):
            self._items.append(item)
        self.wake()

    def _keep(self, data: Data) -> None:
        """Behind many pieces that wait, small ones are joined: else a window of single bytes would cost 100 times its size."""
        newest = self._newest.get(data.channel)
        if (
            newest is not None
            and len(self._items) >= _MANY_ITEMS
            and len(newest.payload) + len(data.payload) <= _SMALL_BYTES
            and newest.offset + len(newest.payload) == data.offset
        ):
            newest.payload += data.payload
            return
        self._items.append(data)
        self._newest[data.channel] = data


class _Core:
    """What a link and its streams share: the multiplexer, the transport, and how the link died."""

    def __init__(self) -> None:
        self.hello: Mapping[str, Json] = {}
        self.mux = Mux(is_dialer=True)
        self.streams: dict[int, Stream] = {}
        self.transport: asyncio.Transport | None = None
        self.is_paused = False
        self.loss: Exception | None = None
        self.greeted = asyncio.Event()
        self.gone = asyncio.Event()
        self.disconnected = asyncio.Event()
        self._is_flushing = False

    def check(self) -> None:
        if self.loss is not None:
            raise LinkLost(str(self.loss)) from self.loss

    def check_greeted(self) -> None:
        if isinstance(self.loss, ProtocolError | OSError | DialRefused):
            raise self.loss
        if self.loss is not None:
            raise ConnectionResetError(str(self.loss))

    def open(self, op: str, args: Mapping[str, Json], offsets: Mapping[int, int] | None, *, may_skip: bool) -> Stream:
        self.check()
        number = self.mux.open(op, args, offsets=offsets, may_skip=may_skip)
        stream = self.streams[number] = Stream(self, number)
        self.flush_soon()
        return stream

    def consume(self, number: int) -> None:
        self.mux.consume(number)
        self.flush_soon()

    def cancel(self, number: int) -> None:
        if self.streams.pop(number, None) is not None and self.loss is None:
            self.mux.cancel(number)
            self.flush_soon()

    def receive(self, number: int, item: Item) -> None:
        if isinstance(item, Hello):
            if (refused := item.fields.get("refused")) is not None:
                raise DialRefused(_refusal(item.fields), is_superseded=refused == "epoch")
            self.hello = item.fields
            self.greeted.set()
        elif not self.greeted.is_set():
            raise ProtocolError("no hello")
        elif (stream := self.streams.get(number)) is not None:
            stream.deliver(item)
            if isinstance(item, Ended):
                del self.streams[number]

    def lose(self, loss: Exception) -> None:
        self.loss = self.loss or loss
        self.greeted.set()
        self.gone.set()
        for stream in self.streams.values():
            stream.wake()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def flush_soon(self) -> None:
        # One flush per turn of the loop turns many small acknowledgements into one system call.
        if not self._is_flushing and self.loss is None:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self.transport is not None and not self.is_paused and self.loss is None:
            output = self.mux.output(_OUTPUT_BYTES)
            if not output:
                return
            self.transport.writelines(output)


class Link:
    """One connection to one agent."""

    def __init__(self, core: _Core) -> None:
        self._core = core
        self.hello: Mapping[str, Json] = core.hello

    @classmethod
    async def dial(cls, path: str | os.PathLike[str], credentials: Credentials, *, timeout_s: float) -> Link:
        """Connect to an agent's unix socket, say who dials, and wait for its hello.

        Raises: as `over`, and BlockingIOError where too many others are waiting to be accepted: try again.
        """

        async def connect(protocol: Callable[[], asyncio.BaseProtocol]) -> None:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.setblocking(False)
                # Not by the loop, which takes a full backlog for a connection under way. It never waits.
                sock.connect(os.fspath(path))
                await asyncio.get_running_loop().create_unix_connection(protocol, sock=sock)
            except BaseException:
                sock.close()
                raise

        return await cls.over(connect, credentials, timeout_s=timeout_s)

    @classmethod
    async def dial_tls(
        cls, address: tuple[str, int], context: ssl.SSLContext, credentials: Credentials, *, timeout_s: float
    ) -> Link:
        """The same over TCP, where our certificate says who we are. Raises: as `over`.

        We dial and take the server's part of TLS: so the agent needs no key of its own.
        """
        loop = asyncio.get_running_loop()

        async def connect(protocol: Callable[[], asyncio.BaseProtocol]) -> None:
            (family, kind, proto, _, place), *_ = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
            sock = socket.socket(family, kind, proto)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, place)
                await loop.connect_accepted_socket(protocol, sock, ssl=context)
            except BaseException:
                sock.close()
                raise

        return await cls.over(connect, credentials, timeout_s=timeout_s)

    @classmethod
    async def over(cls, connect: Connect, credentials: Credentials, *, timeout_s: float) -> Link:
        """The same over any byte transport.

        Raises:
            OSError: nobody listens there.
            TimeoutError: no hello in time.
            DialRefused: the secret is wrong, or a dialer with a higher epoch has come before.
            ProtocolError: whoever answers is not an agent.
        """
        core = _Core()
        core.mux.hello(credentials.fields())
        try:
            async with asyncio.timeout(timeout_s):
                await connect(lambda: _Protocol(core))
                await core.greeted.wait()
            core.check_greeted()
        except BaseException:
            core.abort()
            raise
        return cls(core)

    async def call(self, op: str, args: Mapping[str, Json] | None = None, *, timeout_s: float = 10) -> dict[str, Json]:
        """A unary operation.

        Raises:
            RemoteError: the agent refused or failed.
            LinkLost: the link died first.
            TimeoutError: no answer in time.
        """
        stream = await self.open(op, args or {})
        try:
            async with asyncio.timeout(timeout_s):
                while await stream.receive() is not None:
                    pass
        finally:
            await stream.cancel()
        return dict(stream.result)

    async def open(self, op: str, args: Mapping[str, Json]) -> Stream:
        """Start a streaming operation; `attach` resumes from the offsets in its arguments, and so does `follow`.

        Raises:
            LinkLost: the link is gone.
            ValueError: the arguments do not fit in a frame.
        """
        offsets = None
        if op in ("attach", "follow"):
            offsets = {int(channel): int(offset) for channel, offset in args.get("offsets", {}).items()}
        return self._core.open(op, args, offsets, may_skip=op == "follow")

    @property
    def is_lost(self) -> bool:
        """Whether it is gone already."""
        return self._core.gone.is_set()

    async def closed(self) -> None:
        """Wait until the link is gone."""
        await self._core.gone.wait()

    async def close(self) -> None:
        """Hang up; commands in the sandbox go on."""
        self._core.lose(LinkLost("closed by this side"))
        self._core.abort()
        await self._core.disconnected.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Protocol(asyncio.BufferedProtocol):
    """Receives straight into the decoder's buffer."""

    def __init__(self, core: _Core) -> None:
        self._core = core
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream transport is needed")
        self._core.transport = transport
        self._core.flush_soon()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for number, item in self._core.mux.receive(self._decoder.filled(nbytes)):
                self._core.receive(number, item)
        except (ProtocolError, DialRefused) as error:
            self._core.lose(error)
            self._core.abort()
        else:
            self._core.flush_soon()

    def pause_writing(self) -> None:
        self._core.is_paused = True

    def resume_writing(self) -> None:
        self._core.is_paused = False
        self._core.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        self._core.lose(error or LinkLost("the agent hung up"))
        self._core.disconnected.set()


def _refusal(fields: Mapping[str, Json]) -> str:
    """In our own words: those of an agent are not trusted."""
    if fields.get("refused") == "epoch":
        epoch = fields.get("epoch")
        return f"another gateway owns the sandbox now (epoch {epoch})" if isinstance(epoch, int) else "not the owner"
    return "the agent does not accept these credentials"
