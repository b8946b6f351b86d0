"""Knows when a peer is gone, also while nothing is read from it.

A connection whose reading is paused, because its command takes no input, says nothing about its end: asyncio then
does not look at it at all. Here every connection is watched for its end and nothing else.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

__all__ = ["Hangups"]

_BATCH = 64


class Hangups:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._told: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, descriptor: int, told: Callable[[], None]) -> None:
        """Call `told` once when the peer has ended its side."""
        self._told[descriptor] = told
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def forget(self, descriptor: int) -> None:
        """Before the descriptor is closed."""
        if self._told.pop(descriptor, None):
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0, _BATCH):
            told = self._told.pop(descriptor)
            self._epoll.unregister(descriptor)
            told()
