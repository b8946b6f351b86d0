"""Accepts connections on the unix socket: a few per turn of the event loop, and refuses cheaply those beyond a user's bounds.

All users share the kernel's accept queue, so the cost of one user's connections is the waiting time of the others. asyncio
would accept everything that waits in one turn and make a transport and a parser for each. Here a refused connection costs
three system calls. It is closed a second later, because many programs reconnect at once when a connection is closed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from k8e.buckets import Buckets
from k8e.doors.connect.connections import TOO_MANY, Connection, Listening, answer_of
from k8e.doors.connect.peers import uid_of

__all__ = ["Acceptor"]

_log = logging.getLogger(__name__)

_PER_TURN: Final = 32
"""Connections taken before everybody else has a turn: few enough for the turn to be short, and for what most of them ask
to have arrived before the next."""
_REFUSALS_PER_S: Final = 200
"""Of one user's connections that are turned away, those that hear why: telling it costs more than all the rest."""
_CLOSE_AFTER_S: Final = 1.0
"""How long it takes until one that is turned away is closed, which is when it was told to come again."""
_SWEEP_S: Final = 0.05
_PAUSE_S: Final = 0.1
_OUT_OF_RESOURCES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_REFUSAL: Final = answer_of(TOO_MANY)


class Acceptor:
    """Accepts on one listening socket until it is closed. Tasks live in `group`, which the caller owns."""

    def __init__(
        self, sock: socket.socket, state: Listening, made: Callable[[], Connection], group: asyncio.TaskGroup
    ) -> None:
        self._sock = sock
        self._state = state
        self._made = made
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._operator = os.geteuid()
        bounds = state.bounds
        self._arrivals = Buckets(per_s=bounds.arrivals_per_s, burst=bounds.arrivals_per_s, clock=self._loop.time)
        self._refusals_sent = Buckets(per_s=_REFUSALS_PER_S, burst=_REFUSALS_PER_S, clock=self._loop.time)
        self._closing: collections.deque[tuple[float, socket.socket]] = collections.deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._take)

    def close(self) -> None:
        """Accept no more; the kernel refuses what is still in its queue when the socket is closed."""
        self._loop.remove_reader(self._sock)
        for timer in (self._resuming, self._sweeping):
            if timer is not None:
                timer.cancel()
        for _, accepted in self._closing:
            accepted.close()

    def _take(self) -> None:
        for _ in range(_PER_TURN):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._pause(error)
                return
            self._receive(accepted)

    def _receive(self, accepted: socket.socket) -> None:
        uid = uid_of(accepted)
        if not self._has_room(uid):
            if not self._refusals_sent.take(str(uid)):
                send_refusal(accepted)
            self._close_later(accepted)
            return
        # Counted from now on: it begins a turn later.
        self._state.by_user[uid] += 1
        self._group.create_task(self._begin(accepted, uid), name="connection")

    def _has_room(self, uid: int) -> bool:
        if self._state.by_user[uid] >= self._state.bounds.connections:
            return False
        return uid == self._operator or not self._arrivals.take(str(uid))

    async def _begin(self, accepted: socket.socket, uid: int) -> None:
        connection = self._made()
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError as error:
            _log.debug("connection failed", extra={"reason": str(error)})
            accepted.close()
        finally:
            if not connection.has_begun:
                self._state.by_user[uid] -= 1

    def _close_later(self, accepted: socket.socket) -> None:
        """Close it later; where there are too many of them, the one that came first goes now."""
        self._closing.append((self._loop.time() + _CLOSE_AFTER_S, accepted))
        if len(self._closing) > self._state.bounds.closing:
            self._closing.popleft()[1].close()
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        while self._closing and self._closing[0][0] <= self._loop.time():
            self._closing.popleft()[1].close()
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep) if self._closing else None

    def _pause(self, error: OSError) -> None:
        _log.warning("cannot take a connection", extra={"errno": error.errno})
        self._loop.remove_reader(self._sock)
        self._resuming = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._sock, self._take)


def send_refusal(accepted: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        accepted.send(_REFUSAL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
