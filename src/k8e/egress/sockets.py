"""How the data plane treats its sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator

__all__ = ["MODEST_BUFFER", "accepted", "furnish", "is_quiet", "reset"]

_log = logging.getLogger(__name__)

MODEST_BUFFER = 256 * 1024
"""For the connections of a sandbox that has many: the kernel would let each grow to megabytes."""

_BATCH = 32
_BREATH_S = 0.1

_LINGER_NOT = struct.pack("ii", 1, 0)
_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
    # Also for what we sent and nobody acknowledges, in milliseconds.
    socket.TCP_USER_TIMEOUT: 120_000,
}


def accepted(listener: socket.socket, again: Callable[[], None]) -> Iterator[tuple[socket.socket, str]]:
    """Each connection that has arrived, a batch of them, and where it comes from.

    When no descriptor is free, those that wait must wait, without us spinning: the listener is left alone for a moment
    and then watched again, with `again`.
    """
    for _ in range(_BATCH):
        try:
            client, peer = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.warning("cannot accept", extra={"errno": error.errno})
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(_BREATH_S, _watch, loop, listener, again)
            return
        client.setblocking(False)
        yield client, peer[0]


def _watch(loop: asyncio.AbstractEventLoop, listener: socket.socket, again: Callable[[], None]) -> None:
    if listener.fileno() >= 0:
        loop.add_reader(listener, again)


def furnish(sock: socket.socket, *, is_modest: bool = False) -> None:
    """Small pieces go at once, and an end that vanished without a word is noticed."""
    with contextlib.suppress(OSError):  # reset by its peer in the meantime: whoever uses it will find out
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if is_modest:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MODEST_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MODEST_BUFFER)


def is_quiet(sock: socket.socket) -> bool:
    """Open, and nothing has come that is still to be read."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def reset(sock: socket.socket) -> None:
    """Close so that the other end learns at once (RST), and nothing lingers here."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    sock.close()
