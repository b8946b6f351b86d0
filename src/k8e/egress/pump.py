"""Moves bytes between pairs of sockets without ever seeing them: `splice` through pipes, in fair turns.

- Back-pressure: nothing is read that cannot be passed on; what is on its way for one direction fits one pipe.
- The end of one direction is passed on as such (half-close); a reset ends both.
- Lanes share: a sandbox with a hundred streams gets no more than its neighbour with one (`lanes.py`).
- A pipe is held only while bytes are in it; idle connections cost two sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from k8e.egress.lanes import Lane, Ring
from k8e.egress.sockets import reset

__all__ = ["Pair", "Pump", "SandboxLane"]

_PIPE_BYTES = 1 << 20
_SPARE_PIPES = 32
_TURN_S = 0.002
"""How long the pump works before the loop may look after everything else."""
_MOST_PER_LANE = 4 << 20
"""Of all pipes of one sandbox together, once it has many streams: this bounds what its unread bytes cost us."""
_MANY = 16
"""Streams at once that are still nobody's greed."""
_LEAST_PER_FLOW = 64 * 1024
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
_BROKEN = select.EPOLLERR | select.EPOLLHUP


@dataclass(frozen=True, slots=True)
class _Pipe:
    out: int
    into: int

    def close(self) -> None:
        os.close(self.out)
        os.close(self.into)


class _Pipes:
    """Empty pipes for whoever needs one."""

    def __init__(self) -> None:
        self._spare: list[_Pipe] = []

    def take(self) -> _Pipe:
        if self._spare:
            return self._spare.pop()
        pipe = _Pipe(*os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        with contextlib.suppress(OSError):  # not allowed more than the usual: slower, not wrong
            fcntl.fcntl(pipe.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return pipe

    def give(self, pipe: _Pipe) -> None:
        if len(self._spare) < _SPARE_PIPES:
            self._spare.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        while self._spare:
            self._spare.pop().close()


class _Flow:
    """One direction of a pair."""

    __slots__ = (
        "can_read",
        "can_write",
        "head",
        "held",
        "is_over",
        "is_queued",
        "moved",
        "pair",
        "pipe",
        "sink",
        "source",
    )

    def __init__(self, pair: Pair, source: socket.socket, sink: socket.socket, head: bytes) -> None:
        self.pair = pair
        self.source = source
        self.sink = sink
        self.head = head
        """Bytes that were read before the pump took over; they go first."""
        self.pipe: _Pipe | None = None
        self.held = 0
        self.moved = 0
        self.can_read = False
        self.can_write = False
        self.is_over = False
        self.is_queued = False

    @property
    def has_work(self) -> bool:
        return not self.is_over and self.can_write and (bool(self.head) or self.held > 0 or self.can_read)

    def step(self, pipes: _Pipes, most: int) -> int:
        """Move up to `most` bytes; how many. Raises: OSError when the source is broken."""
        try:
            if self.head:
                return self._send_head()
            if not self.held:
                self._fill(pipes, most)
            return self._drain(pipes) if self.held else 0
        except BlockingIOError:
            return 0

    def _send_head(self) -> int:
        try:
            sent = self.sink.send(self.head)
        except BlockingIOError:
            self.can_write = False
            raise
        except OSError:
            self.stop()
            return 0
        self.head = self.head[sent:]
        self.moved += sent
        return sent

    def _fill(self, pipes: _Pipes, most: int) -> None:
        self.pipe = pipes.take()
        try:
            self.held = os.splice(self.source.fileno(), self.pipe.into, most, flags=_FLAGS)
        except BlockingIOError:
            self.can_read = False
            raise
        finally:
            if not self.held:
                pipes.give(self.pipe)
                self.pipe = None
        if not self.held:
            self.stop()

    def _drain(self, pipes: _Pipes) -> int:
        assert self.pipe is not None  # noqa: S101 - held bytes are in a pipe
        try:
            sent = os.splice(self.pipe.out, self.sink.fileno(), self.held, flags=_FLAGS)
        except BlockingIOError:
            self.can_write = False
            raise
        except OSError:
            # Nobody takes these any more; what comes the other way may still be wanted.
            self.stop()
            return 0
        self.held -= sent
        self.moved += sent
        if not self.held:
            pipes.give(self.pipe)
            self.pipe = None
        return sent

    def stop(self) -> None:
        """No more in this direction."""
        self.is_over = True
        self.close()
        with contextlib.suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None
        self.held = 0
        self.head = b""


class Pair:
    """Two sockets that talk through us."""

    __slots__ = ("client", "down", "ended", "is_closed", "lane", "up", "upstream")

    def __init__(
        self, lane: SandboxLane, client: socket.socket, upstream: socket.socket, head: bytes, ended: Callable[[], None]
    ) -> None:
        self.lane = lane
        self.client = client
        self.upstream = upstream
        self.ended = ended
        self.up = _Flow(self, client, upstream, head)
        self.down = _Flow(self, upstream, client, b"")
        self.is_closed = False

    @property
    def sent(self) -> int:
        return self.up.moved

    @property
    def received(self) -> int:
        return self.down.moved


class SandboxLane(Lane[_Flow]):
    """One sandbox's streams."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        super().__init__()
        self.pairs = 0

    def set_rate(self, bytes_per_s: int) -> None:
        if bytes_per_s != self.bucket.rate:
            self.bucket.set_rate(bytes_per_s, time.monotonic())

    @property
    def is_greedy(self) -> bool:
        return self.pairs > _MANY

    @property
    def piece(self) -> int:
        """The most that one of its streams moves, and so holds, at once."""
        return max(_LEAST_PER_FLOW, min(_PIPE_BYTES, _MOST_PER_LANE // max(1, self.pairs)))


class Pump:
    """All pairs of this process; lives on the running event loop until closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._pipes = _Pipes()
        self._ring: Ring[_Flow] = Ring()
        self._pairs: dict[int, Pair] = {}
        """By both descriptors."""
        self._soon: asyncio.Handle | None = None
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def join(
        self,
        lane: SandboxLane,
        client: socket.socket,
        upstream: socket.socket,
        *,
        head: bytes,
        ended: Callable[[], None],
    ) -> Pair:
        """Carry bytes between two non-blocking sockets, `head` first, until both directions have ended.

        Both sockets are the pump's from now on. `ended` is called once, when they are closed.
        """
        pair = Pair(lane, client, upstream, head, ended)
        lane.pairs += 1
        for sock in (client, upstream):
            self._pairs[sock.fileno()] = pair
            self._epoll.register(sock.fileno(), _EVENTS)
        return pair

    def cut(self, pair: Pair) -> None:
        """End it now, with a reset for both ends. Repeatable."""
        self._close(pair, reset)

    def close(self) -> None:
        """Cut everything and give all descriptors back."""
        for pair in set(self._pairs.values()):
            self.cut(pair)
        self._loop.remove_reader(self._epoll.fileno())
        if self._soon is not None:
            self._soon.cancel()
        self._epoll.close()
        self._pipes.close()

    def _turn(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        now = time.monotonic()
        until = now + _TURN_S
        while now < until:
            self._listen()
            chosen = self._ring.next(now)
            if chosen is None:
                break
            self._step(*chosen)
            now = time.monotonic()
        rest_s = 0.0 if now >= until else self._ring.rest_s(now)
        if rest_s is not None:
            self._soon = self._loop.call_later(rest_s, self._turn) if rest_s else self._loop.call_soon(self._turn)

    def _step(self, lane: Lane[_Flow], flow: _Flow, allowed: int | None) -> None:
        flow.is_queued = False
        pair = flow.pair
        if pair.is_closed:
            return
        piece = pair.lane.piece
        try:
            moved = flow.step(self._pipes, piece if allowed is None else min(piece, allowed))
        except OSError:
            self.cut(pair)
            return
        self._ring.charge(lane, moved, time.monotonic())
        self._queue(flow)
        self._close_if_over(pair)

    def _listen(self) -> None:
        for descriptor, events in self._epoll.poll(0):
            pair = self._pairs.get(descriptor)
            if pair is None:
                continue
            if events & select.EPOLLERR and pair.client.fileno() == descriptor:
                # Nobody is left to read or write for; a full pipe would never have let us find out.
                self.cut(pair)
                continue
            reading, writing = (pair.up, pair.down) if pair.client.fileno() == descriptor else (pair.down, pair.up)
            if events & (select.EPOLLIN | _BROKEN):
                reading.can_read = True
            if events & (select.EPOLLOUT | _BROKEN):
                writing.can_write = True
            if events & select.EPOLLHUP and not writing.is_over:
                writing.stop()  # nobody will ever read it there, even if the other end never stops sending
            self._queue(reading)
            self._queue(writing)
            self._close_if_over(pair)

    def _queue(self, flow: _Flow) -> None:
        if flow.has_work and not flow.is_queued:
            flow.is_queued = True
            self._ring.push(flow.pair.lane, flow)

    def _close_if_over(self, pair: Pair) -> None:
        if pair.up.is_over and pair.down.is_over:
            self._close(pair, socket.socket.close)

    def _close(self, pair: Pair, how: Callable[[socket.socket], None]) -> None:
        if pair.is_closed:
            return
        pair.is_closed = True
        pair.lane.pairs -= 1
        for sock in (pair.client, pair.upstream):
            del self._pairs[sock.fileno()]
            how(sock)
        pair.up.close()
        pair.down.close()
        pair.ended()
