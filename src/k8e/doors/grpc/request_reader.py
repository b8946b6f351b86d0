"""Reads the message of a unary gRPC call after its caller is known, a bounded number of one owner at a time.

gRPC reads the whole message of a unary call, up to 64 MiB, before its handler runs. So all calls are registered as streaming
ones, and the single message of a unary call is read here.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator

from k8e.byte_budget import ByteReservation
from k8e.doors.service.call import too_much_memory
from k8e.errors import InvalidSpec
from k8e.model import OwnerId

__all__ = ["RequestLate", "RequestReader"]

AT_ONCE = 16
"""Requests of one owner that are read at the same time. The size of one is known, and counted, only when it has arrived."""
READ_S = 300.0
"""For one request: a slow connection needs minutes for the largest."""


class RequestLate(Exception):
    """The request did not arrive in time."""


class RequestReader:
    def __init__(self, *, at_once: int = AT_ONCE, read_s: float = READ_S) -> None:
        self._at_once = at_once
        self._read_s = read_s
        self._slots: weakref.WeakValueDictionary[OwnerId, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def read(self, owner: OwnerId, messages: AsyncIterator[bytes], reservation: ByteReservation) -> bytes:
        """The first message, counted in `reservation`. Raises: InvalidSpec where there is none, Exhausted, RequestLate."""
        slot = self._slots.setdefault(owner, asyncio.Semaphore(self._at_once))
        try:
            async with slot, asyncio.timeout(self._read_s):
                data = await anext(aiter(messages), None)
        except TimeoutError as error:
            raise RequestLate from error
        if data is None:
            raise InvalidSpec("the call has no message")
        if not reservation.grow(len(data)):
            raise too_much_memory()
        return data
