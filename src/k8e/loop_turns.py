"""Long loops on the event loop, written so that other calls have a turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, Self, TypeVar

__all__ = ["InTurns"]

EVERY = 64
"""Items between two turns of others: less than a millisecond where an item is a row, an entry or a message."""

T = TypeVar("T")


class InTurns(Generic[T]):
    """The same items for `async for`; after every 64 of them the event loop does what else is waiting.

    A class and not an async generator: a loop that is left early must let go of the items at once, and asyncio ends an
    abandoned generator only later.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._count = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._count += 1
        if not self._count % EVERY:
            await asyncio.sleep(0)
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
