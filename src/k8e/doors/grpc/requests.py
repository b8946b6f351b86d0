"""Single requests over gRPC: read only once their caller is known, a bounded number and amount of one owner at a time.

gRPC itself takes in a whole message of any call that comes. So every call is registered as one that streams, and its
request is read here.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator

from k8e.byte_budget import ByteBudget, ByteReservation
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import OwnerId

__all__ = ["RequestLate", "Requests"]

ARRIVING = 16
"""Requests of one owner that arrive at the same time; how large one is shows only when it is there."""
ARRIVAL_S = 300.0
"""For one of them: a slow line needs some minutes for the largest."""
HELD_BYTES = 256 * 1024 * 1024
"""What the requests of one owner that have arrived may hold, until they are answered."""


class RequestLate(Exception):
    """It did not come in time."""


class Requests:
    def __init__(self, *, arriving: int = ARRIVING, arrival_s: float = ARRIVAL_S, held_bytes: int = HELD_BYTES) -> None:
        self._arriving = arriving
        self._arrival_s = arrival_s
        # No bound over all owners: how many there are is the operator's to say.
        self._budget = ByteBudget(per_owner=held_bytes, floor=held_bytes)
        self._slots: weakref.WeakValueDictionary[OwnerId, asyncio.Semaphore] = weakref.WeakValueDictionary()

    def reservation(self, owner: OwnerId) -> ByteReservation:
        """What one request holds, until this is closed."""
        return self._budget.open(owner)

    async def receive(self, owner: OwnerId, pieces: AsyncIterator[bytes], held: ByteReservation) -> bytes:
        """The only message. Raises: InvalidSpec when none came, Exhausted, RequestLate."""
        slot = self._slots.setdefault(owner, asyncio.Semaphore(self._arriving))
        try:
            async with slot, asyncio.timeout(self._arrival_s):
                data = await anext(aiter(pieces), None)
        except TimeoutError as error:
            raise RequestLate from error
        if data is None:
            raise InvalidSpec("the call has no message")
        if not held.grow(len(data)):
            raise Exhausted(
                "your calls hold too much memory: use a stream, or wait for those that run", retry_after_s=1.0
            )
        return data
