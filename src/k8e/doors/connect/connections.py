"""One connection of the door: uvicorn's HTTP/1.1 over httptools, with bounds around it.

uvicorn streams both ways at once as it is (a body goes on arriving after the answer has begun). What it leaves open
and a stranger could use is closed here:
- a head has to arrive in a bounded time and size, and so has everything else that is not body;
- one request at a time: a connection that sends the next one early is answered once and closed, because a peer's end
  is noticed only while the connection is read;
- a peer's end ends its call, also while reading is paused;
- an answer that ends before its request does ends the connection;
- each user has a bounded number of connections, and of those that have said nothing yet a small one: there the one that
  came first makes room.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from k8e.doors.connect.bounds import Bounds
from k8e.doors.connect.errors import Failure, failure_for
from k8e.doors.connect.hangups import Hangups
from k8e.doors.connect.peers import PeerCredentials, credentials_of
from k8e.errors import Exhausted
from k8e.pending_connections import PendingConnections

__all__ = ["CONNECTION", "HEAD_BYTES", "TOO_MANY", "Connection", "Listening", "answer_of"]

CONNECTION = "connection"
"""Where the application finds its connection in the scope's state."""

HEAD_BYTES = 64 * 1024
TOO_MANY = failure_for(Exhausted("too many connections of this user; close some first", retry_after_s=1.0))


class Listening(ServerState):
    """What the connections of one door share."""

    def __init__(self, hangups: Hangups, bounds: Bounds) -> None:
        super().__init__()
        self.hangups = hangups
        self.bounds = bounds
        self.by_user: Counter[int] = Counter()
        """Connections that there are, or are about to be."""
        self.pending: PendingConnections[Connection] = PendingConnections(each=bounds.pending, all=0)
        """Those whose first request has not come, but the operator's own."""
        self.operator = os.geteuid()
        self.is_closing = False
        self._changed = asyncio.Event()

    def left(self) -> None:
        self._changed.set()

    def close(self) -> None:
        """Take no further requests; connections without one go at once."""
        self.is_closing = True
        for connection in list(self.connections):
            connection.shutdown()

    def abort(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    async def empty(self) -> None:
        while self.connections:
            self._changed.clear()
            await self._changed.wait()


class Connection(HttpToolsProtocol):
    def __init__(self, config: Config, state: Listening) -> None:
        super().__init__(config, state, {})
        self.peer: PeerCredentials
        self.has_begun = False
        self._shared = state
        self._descriptor = -1
        self._call: asyncio.Task[Any] | None = None
        self._is_lost = False
        self._is_hung_up = False
        self._is_early = False
        """The peer sent its next request before it had the answer to this one; all of that is dropped."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._wants_head = True
        self._outside = 0
        """Bytes since the last that belonged to a body."""

    @contextmanager
    def ending(self, call: asyncio.Task[Any]) -> Iterator[None]:
        """Cancel the call when the peer goes away."""
        if self._is_lost:
            call.cancel()
        self._call = call
        try:
            yield
        finally:
            self._call = None

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        self.peer = credentials_of(sock)
        self.has_begun = True
        self._descriptor = sock.fileno()
        self._shared.hangups.watch(self._descriptor, self._hung_up)
        if self._shared.is_closing:
            transport.abort()
        else:
            self._expect_head()
            self._be_silent()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._shared.hangups.forget(self._descriptor)
        self._shared.by_user[self.peer.uid] -= 1
        self._shared.pending.discard(self.peer.uid, self)
        self._stop_head_timer()
        super().connection_lost(exc)
        self._shared.left()
        if self._call:
            self._call.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_early or self.transport.is_closing():
            return
        if self._wants_head and not self._head_timer:
            self._expect_head()
        self._outside += len(data)
        super().data_received(data)
        if self._outside > HEAD_BYTES and not self._is_early:
            too_long = f"the head of a request has at most {HEAD_BYTES} bytes"
            self._refuse(Failure("resource_exhausted", too_long, http=431))

    def _hung_up(self) -> None:
        self._is_hung_up = True
        self._leave_if_unread()

    def _leave_if_unread(self) -> None:
        """While the connection is read, its end is found after everything that came before it."""
        if self._is_hung_up and self.flow.read_paused:
            self.transport.abort()

    # The parser's side.

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_early = True
            self.cycle.keep_alive = False
            return
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self

    def on_url(self, url: bytes) -> None:
        if not self._is_early:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._wants_head and not self._is_early:  # else a trailer, which nobody asked for
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_early:
            self._wants_head = False
            self._stop_head_timer()
            self._shared.pending.discard(self.peer.uid, self)
            if self.parser.should_upgrade():  # the parser then takes the body for another protocol's
                self._refuse(Failure("unimplemented", "this connection stays HTTP/1.1: leave `upgrade` out"))
            else:
                super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_early:
            self._outside = 0
            super().on_body(body)
            self._leave_if_unread()

    def on_message_complete(self) -> None:
        if not self._is_early:
            self._outside = 0
            super().on_message_complete()

    # The answer's side.

    def on_response_complete(self) -> None:
        if self.cycle.more_body:
            self.transport.close()
        self._wants_head = True
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Failure("invalid_argument", "this is not HTTP/1.1 as it should be"))

    def _refuse(self, failure: Failure) -> None:
        """Answer in place of the application, where an answer can still begin, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(answer_of(failure))
        self.transport.close()

    def _be_silent(self) -> None:
        if self.peer.uid != self._shared.operator:
            leaving = self._shared.pending.add(self.peer.uid, self)
            if leaving is not None:
                leaving.transport.abort()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._shared.bounds.head_s, self._is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_late(self) -> None:
        self._head_timer = None
        self._refuse(Failure("deadline_exceeded", "the head of the request did not arrive in time", http=408))


def answer_of(failure: Failure) -> bytes:
    """A whole response, after which the connection is closed."""
    body = failure.body()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    beside = b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in failure.metadata)
    return STATUS_LINE[failure.status] + head + beside + b"\r\n" + body
