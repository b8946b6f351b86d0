"""The agent's side of the link, when the kernel is short of memory: this link is how the sandbox will be relieved."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from k8e.agent.link import Link
from k8e.agent.loop import READ, Loop


class _Loop:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[int], None]] = {}
        self.postponed: list[Callable[[], None]] = []

    def watch(self, fd: int, _mask: int, callback: Callable[[int], None]) -> None:
        self.callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        del self.callbacks[fd]

    def later(self, _delay_s: float, action: Callable[[], None]) -> None:
        self.postponed.append(action)


class _Refused(socket.socket):
    """Every operation fails until it is told otherwise."""

    error = 0

    def sendmsg(self, *args: Any) -> int:
        self._check()
        return super().sendmsg(*args)

    def recv_into(self, *args: Any) -> int:
        self._check()
        return super().recv_into(*args)

    def _check(self) -> None:
        if self.error:
            raise OSError(self.error, "refused")


@pytest.fixture
def pair() -> Iterator[tuple[_Refused, socket.socket]]:
    ours, theirs = socket.socketpair()
    with _Refused(fileno=ours.detach()) as refused, theirs:
        theirs.setblocking(False)
        yield refused, theirs


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.ENOBUFS])
def test_it_outlives_a_lack_of_memory(pair: tuple[_Refused, socket.socket], error: int) -> None:
    (sock, peer), loop, closed = pair, _Loop(), list[Link]()
    link = Link(cast("Loop", loop), sock, lambda *_: None, lambda *_: None, closed.append)
    link.mux.hello({"version": 1})
    sock.error = error
    link.flush()
    peer.send(b"\0")
    loop.callbacks[sock.fileno()](READ)
    sock.error = 0
    (again,) = loop.postponed
    again()
    assert peer.recv(4096)
    assert closed == []


def test_the_control_a_broken_connection_is_closed(pair: tuple[_Refused, socket.socket]) -> None:
    (sock, _), loop, closed = pair, _Loop(), list[Link]()
    link = Link(cast("Loop", loop), sock, lambda *_: None, lambda *_: None, closed.append)
    link.mux.hello({"version": 1})
    sock.error = errno.EPIPE
    link.flush()
    assert closed == [link]
