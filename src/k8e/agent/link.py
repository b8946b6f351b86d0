"""A connection to the agent: non-blocking, its dialer says first who it is, and a broken one costs only itself."""

from __future__ import annotations

import errno

from k8e.wire.frames import Decoder, ProtocolError
from k8e.wire.items import Acked, Cancelled, Data, Finished, Hello, Opened
from k8e.wire.mux import Mux

from .loop import ERROR, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Dict, List, Mapping, Union

    from k8e.wire.items import Item

    from .loop import Loop
    from .tls import TlsSocket

    Opener = Callable[["Link", int, str, Dict[str, Any]], None]
    Greeter = Callable[["Link", Dict[str, Any]], None]

__all__ = ["Link", "Subscriber"]

_OUTPUT_BYTES = 1024 * 1024
_MAX_BUFFERS = 256

_SHORT_OF_MEMORY = (errno.ENOMEM, errno.ENOBUFS)
"""The sandbox is at its limit, and this link is how it will be relieved: it must outlive that."""
_AGAIN_S = 0.01


class Subscriber:
    """What serves a stream for longer than one answer."""

    def data(self, offset: int, payload: bytes) -> None:
        """Bytes on channel 0."""

    def finished(self) -> None:
        """Channel 0 has ended."""

    def acked(self) -> None:
        """The engine made room."""

    def lost(self) -> None:
        """Cancelled, ended and told so, or the link is gone; perhaps more than once."""


class Link:
    """One accepted connection. `greeter` is given the dialer's first frame, and accepts, refuses or closes the link.

    Until it is accepted nothing can be asked on it.
    """

    def __init__(
        self,
        loop: Loop,
        sock: Union[socket.socket, TlsSocket],
        opener: Opener,
        greeter: Greeter,
        on_close: Callable[[Link], None],
    ) -> None:
        self.is_accepted = False
        self.is_follower = False
        """It may only ask for what changes nothing."""
        self._greeter = greeter
        self.mux = Mux(is_dialer=False)
        self.subscribers: Dict[int, Subscriber] = {}
        self._loop = loop
        self._sock = sock
        self._opener = opener
        self._on_close = on_close
        self._decoder = Decoder()
        self._pending: List[Union[bytes, memoryview]] = []
        self._is_closed = False
        self._buffered: Callable[[], int] = getattr(sock, "pending", _nothing)
        """Bytes that were read from the socket and not yet from TLS: the loop does not know of them."""
        sock.setblocking(False)
        loop.watch(sock.fileno(), READ, self._ready)

    def accept(self, fields: Mapping[str, Any], *, is_follower: bool) -> None:
        """Serve this dialer from now on."""
        self.is_accepted, self.is_follower = True, is_follower
        self.mux.hello(fields)
        self.flush()

    def refuse(self, fields: Mapping[str, Any]) -> None:
        """Say so and hang up; whatever else it has sent is not read."""
        self.mux.hello(fields)
        self.flush()
        self.close()

    def fail(self, number: int, code: str, message: str) -> None:
        """End a stream with an error."""
        self.subscribers.pop(number, None)
        self.mux.fail(number, code, message)
        self.flush()

    def end(self, number: int, result: Mapping[str, Any]) -> None:
        """End a stream well."""
        self.mux.end(number, result)
        self.flush()

    def close(self) -> None:
        """Drop the connection and everything that lives only for it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        subscribers, self.subscribers = self.subscribers, {}
        for subscriber in subscribers.values():
            subscriber.lost()
        self._on_close(self)

    def flush(self) -> None:
        """Send what can be sent now; the loop sends the rest."""
        if self._is_closed:
            return
        try:
            while self._fill():
                self._advance(self._sock.sendmsg(self._pending[:_MAX_BUFFERS]))
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _SHORT_OF_MEMORY:
                self._loop.later(_AGAIN_S, self.flush)
            else:
                self.close()
            return
        self._loop.watch(self._sock.fileno(), READ | WRITE if self._pending else READ, self._ready)

    def _fill(self) -> bool:
        if not self._pending:
            self._pending = self.mux.output(_OUTPUT_BYTES)
            for number in self.mux.take_ended():
                # What it holds, its output above all, would else stay for as long as the connection.
                subscriber = self.subscribers.pop(number, None)
                if subscriber is not None:
                    subscriber.lost()
        return bool(self._pending)

    def _advance(self, count: int) -> None:
        done = 0
        for buffer in self._pending:
            if count < len(buffer):
                break
            count -= len(buffer)
            done += 1
        del self._pending[:done]
        if count:
            self._pending[0] = memoryview(self._pending[0])[count:]

    def _ready(self, events: int) -> None:
        if events & (READ | ERROR):
            self._receive()
        if events & WRITE:
            self.flush()

    def _receive(self) -> None:
        self._receive_once()
        while not self._is_closed and self._buffered():
            self._receive_once()

    def _receive_once(self) -> None:
        try:
            count = self._sock.recv_into(self._decoder.space())
            items = self.mux.receive(self._decoder.filled(count)) if count else None
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            if isinstance(error, OSError) and error.errno in _SHORT_OF_MEMORY:
                return  # still readable: the loop comes back
            items = None
        if items is None:
            self.close()
            return
        for number, item in items:
            if self._is_closed:
                return
            self._dispatch(number, item)
        self.flush()

    def _dispatch(self, number: int, item: Item) -> None:
        if isinstance(item, Hello):
            self._greeter(self, item.fields)
            return
        if not self.is_accepted:
            self.close()
            return
        if isinstance(item, Opened):
            self._opener(self, number, item.op, item.args)
            return
        subscriber = self.subscribers.get(number)
        if subscriber is None:
            return
        if isinstance(item, Data) and item.channel == 0:
            subscriber.data(item.offset, item.payload)
        elif isinstance(item, Finished) and item.channel == 0:
            subscriber.finished()
        elif isinstance(item, Acked):
            subscriber.acked()
        elif isinstance(item, Cancelled):
            del self.subscribers[number]
            subscriber.lost()


def _nothing() -> int:
    return 0
