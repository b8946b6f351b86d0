"""Connections to TCP ports inside the sandbox: one stream of the engine is one connection to a server on loopback.

Neither direction costs more than its window: input is acknowledged when the kernel has taken it, and the socket is read
only while the engine has room. Each direction ends by itself, and an error is told after everything that came before it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque

from k8e.wire.outbox import Outbox

from . import fields
from .fields import Refusal
from .link import Subscriber
from .loop import ERROR, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Tuple

    from .link import Link
    from .loop import Loop, Timer
    from .service import Service

__all__ = ["Ports"]

_MAX_CONNECTIONS = 256
_CONNECT_S = 10.0
"""Only a server that does not accept lets a connection on loopback wait: its queue is full."""
_WINDOW = 256 * 1024
"""Of what a server sent and the engine has not passed on; less than the engine allows, because connections are many."""
_READ_BYTES = 128 * 1024
_AGAIN_S = 0.01
_FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
_SHORT_OF_MEMORY = (errno.ENOMEM, errno.ENOBUFS)
_NO_SUCH_ADDRESS = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH)
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Ports:
    """The `tcp` operation, and how many of them are open."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open = 0

    def register(self, service: Service) -> None:
        """Offer the operation."""
        service.add_stream("tcp", self._open_connection)

    def _open_connection(self, link: Link, number: int, args: Dict[str, Any]) -> None:
        port = fields.integer(args, "port")
        if not 0 < port < 65536:
            raise Refusal("invalid", "port must be 1-65535")
        host = fields.optional_text(args, "host")
        if host is not None and host not in _FAMILIES:
            raise Refusal("invalid", "host must be 127.0.0.1 or ::1")
        if self._open >= _MAX_CONNECTIONS:
            raise Refusal("exhausted", "%d connections are open: close one" % self._open)
        connection = _Connection(self, self._loop, link, number, port, list(_FAMILIES) if host is None else [host])
        link.subscribers[number] = connection
        self._open += 1
        connection.connect()

    def closed(self) -> None:
        """One is over."""
        self._open -= 1


class _Connection(Subscriber):
    """One socket: connecting, then open in two directions that end one by one, then closed."""

    def __init__(self, ports: Ports, loop: Loop, link: Link, number: int, port: int, hosts: List[str]) -> None:
        self._ports = ports
        self._loop = loop
        self._link = link
        self._number = number
        self._port = port
        self._hosts = hosts
        self._sock: Optional[socket.socket] = None
        self._is_connected = False
        self._is_over = False
        self._timer: Timer = loop.later(_CONNECT_S, self._connecting_took_too_long)
        self._pending: Deque[memoryview] = deque()
        self._taken = 0
        """The offset up to which the kernel has the input, or nobody will ever want it."""
        self._is_input_over = False
        self._is_write_shut = False
        self._is_read_over = False
        self._failure: Optional[Tuple[str, str]] = None
        self._outbox = Outbox(_WINDOW)

    # Connecting

    def connect(self) -> None:
        """Try the next address; without any left nobody listens."""
        while self._hosts:
            host = self._hosts.pop(0)
            try:
                self._sock = socket.socket(_FAMILIES[host], socket.SOCK_STREAM)
                self._sock.setblocking(False)
                number = self._sock.connect_ex((host, self._port))
            except OSError as error:  # of the socket itself: no such family, no descriptor left
                number = error.errno or errno.EIO
            if number == errno.EINPROGRESS and self._sock is not None:
                self._loop.watch(self._sock.fileno(), WRITE, self._connecting)
                return
            if self._is_established(number) or not self._may_try_next(number):
                return
        self._fail_now("refused", "nothing listens on port %d" % self._port)

    def _connecting(self, events: int) -> None:
        if self._sock is None:
            return
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not self._is_established(number) and self._may_try_next(number):
            self.connect()
        self._link.flush()

    def _is_established(self, number: int) -> bool:
        if number or self._sock is None:
            return False
        try:
            # Where nobody listens, the kernel may give a socket the very port that it dials, and so connect it to itself.
            if self._sock.getsockname() == self._sock.getpeername():
                return False
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass  # it was cut again at once: reading tells
        self._timer.cancel()
        self._is_connected = True
        self._link.mux.event(self._number, "connected", {})
        self._link.mux.attach(self._number, 1, self._outbox)
        self._pump()
        return True

    def _may_try_next(self, number: int) -> bool:
        self._close_socket()
        if number and number not in _NO_SUCH_ADDRESS:
            code = "exhausted" if number in (errno.EMFILE, errno.ENFILE, *_SHORT_OF_MEMORY) else "io"
            self._fail_now(code, "connect to port %d: %s" % (self._port, os.strerror(number)))
            return False
        return True

    def _connecting_took_too_long(self) -> None:
        self._fail_now("timed_out", "the server on port %d did not accept within %d s" % (self._port, _CONNECT_S))

    # What the engine says

    def data(self, offset: int, payload: bytes) -> None:
        self._pending.append(memoryview(payload))
        if self._is_connected:
            self._pump()

    def finished(self) -> None:
        self._is_input_over = True
        if self._is_connected:
            self._pump()

    def acked(self) -> None:
        if self._is_connected:
            self._pump()

    def lost(self) -> None:
        if self._sock is not None and not self._is_write_shut:
            # Whoever only hangs up has not said all: the server must not take what it has for the whole.
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            except OSError:
                pass
        self._leave()

    # Both directions

    def _ready(self, events: int) -> None:
        if events & (READ | ERROR):
            self._read()
        self._pump()
        self._link.flush()

    def _read(self) -> None:
        if self._sock is None or self._is_read_over or self._outbox.room <= 0:
            return
        try:
            data = self._sock.recv(min(_READ_BYTES, self._outbox.room))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _SHORT_OF_MEMORY:
                self._is_read_over = True
                self._failure = self._failure or self._reset(error)
            return
        if data:
            self._outbox.append(data)
            self._link.mux.wake(self._number)
            return
        self._is_read_over = True
        if self._failure is None:
            self._outbox.finish()
            self._link.mux.wake(self._number)

    def _pump(self) -> None:
        """Give the kernel what it takes, look whether this is the end, and await exactly what can go on."""
        if self._sock is None:
            self._end_if_told()
            return
        is_short_of_memory = self._write()
        if self._is_read_over and (self._is_write_shut or self._failure is not None):
            self._close_socket()
            self._end_if_told()
            return
        mask = READ if self._outbox.room > 0 and not self._is_read_over else 0
        if self._pending and not is_short_of_memory:
            mask |= WRITE
        if mask:
            self._loop.watch(self._sock.fileno(), mask, self._ready)
        else:
            # Out of the epoll set altogether: a hang-up would be reported again and again while nothing can be done.
            self._loop.unwatch(self._sock.fileno())
        if is_short_of_memory:
            self._loop.later(_AGAIN_S, self._pump)

    def _write(self) -> bool:
        """Whether the kernel has no memory for it now."""
        try:
            while self._pending and self._sock is not None and self._failure is None:
                count = self._sock.send(self._pending[0])
                self._take(count)
            if self._is_input_over and not self._pending and not self._is_write_shut and self._sock is not None:
                self._is_write_shut = True
                self._sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _SHORT_OF_MEMORY:
                return True
            # What the server sent before it is still to be read.
            self._failure = self._reset(error)
        if self._failure is not None:
            self._take(sum(map(len, self._pending)))
        return False

    def _take(self, count: int) -> None:
        """So much of the input is the kernel's, or the server is gone and nobody's."""
        self._taken += count
        while count and count >= len(self._pending[0]):
            count -= len(self._pending.popleft())
        if count:
            self._pending[0] = self._pending[0][count:]
        self._link.mux.ack(self._number, 0, self._taken)

    def _reset(self, error: OSError) -> Tuple[str, str]:
        return "reset", "the server on port %d closed the connection: %s" % (self._port, error.strerror)

    # The end

    def _end_if_told(self) -> None:
        """The socket is closed: a good end follows the data by itself, an error waits until the engine has all of it."""
        if self._is_over:
            return
        if self._failure is None:
            self._leave()
            self._link.subscribers.pop(self._number, None)
            self._link.end(self._number, {})
        elif self._outbox.base == self._outbox.end:
            self._fail_now(*self._failure)
        else:
            self._take(sum(map(len, self._pending)))

    def _fail_now(self, code: str, message: str) -> None:
        if not self._is_over:
            self._leave()
            self._link.fail(self._number, code, message)

    def _leave(self) -> None:
        self._close_socket()
        self._timer.cancel()
        self._pending.clear()
        if not self._is_over:
            self._is_over = True
            self._ports.closed()

    def _close_socket(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.unwatch(sock.fileno())
            sock.close()
