"""Bytes from one connection to another and back, no faster than the slower side reads."""

from __future__ import annotations

import asyncio
from typing import cast

__all__ = ["Side", "joined"]


class Side(asyncio.Protocol):
    """One of two connections that carry each other's bytes; it reads nothing before the other one is there."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        self._other: asyncio.Transport | None = None

    def join(self, other: asyncio.Transport) -> None:
        self._other = other
        if self.transport is not None:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        if self._other is not None:
            # What was already handed over is still sent.
            self._other.close()


async def joined(near: Side, far: Side) -> None:
    """Carry bytes both ways until both ends are closed."""
    if near.transport is None or far.transport is None:
        return
    near.join(far.transport)
    far.join(near.transport)
    await near.ended.wait()
    far.transport.close()
    await far.ended.wait()
