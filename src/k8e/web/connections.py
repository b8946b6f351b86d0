"""One connection of the agents' HTTP door: uvicorn's HTTP/1.1, where strangers cannot wait for ever.

A head has to arrive in a bounded time and size. Of one user of this machine, or one address elsewhere, there is a bounded
number of connections, so that nobody can take the door from the others, and a small one of those that have said nothing
yet: there the one that came first makes room. How many there are in all is bounded by whoever serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from k8e.identity.sockdiag import SocketTable
from k8e.pending_connections import PendingConnections

__all__ = ["CONNECTIONS_PER_PEER", "HEAD_BYTES", "HEAD_S", "BoundedConnection", "SharedConnections"]

HEAD_S = 10.0
HEAD_BYTES = 64 * 1024
CONNECTIONS_PER_PEER = 1024
"""Connections of one user or address; a proxy before us is one, and its share is as much as a machine of this kind serves."""
PENDING_PER_PEER = 128
"""Of those, connections whose first request has not come; whoever means it sends one at once."""


class SharedConnections(ServerState):
    """What the connections of one door share."""

    def __init__(self) -> None:
        super().__init__()
        self.by_holder: Counter[str] = Counter()
        self.pending: PendingConnections[BoundedConnection] = PendingConnections(each=PENDING_PER_PEER, all=0)
        self._sockets = SocketTable()

    def close(self) -> None:
        self._sockets.close()

    def holder_of(self, source: tuple[str, int] | None, target: tuple[str, int | None] | None) -> str:
        if source is None or target is None or target[1] is None:  # it is gone already
            return ""
        return self._sockets.holder_of(source=source, target=(target[0], target[1]))


class BoundedConnection(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        if not isinstance(server_state, SharedConnections):
            raise TypeError("connections of this door share more than uvicorn's own")
        self._shared = server_state
        self._holder = ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._holder = self._shared.holder_of(self.client, self.server)
        self._shared.by_holder[self._holder] += 1
        if self._shared.by_holder[self._holder] > CONNECTIONS_PER_PEER:
            transport.abort()
            return
        self._expect_head()
        leaving = self._shared.pending.add(self._holder, self)
        if leaving is not None:
            leaving.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._shared.pending.discard(self._holder, self)
        self._shared.by_holder[self._holder] -= 1
        if not self._shared.by_holder[self._holder]:
            del self._shared.by_holder[self._holder]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._shared.pending.discard(self._holder, self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
