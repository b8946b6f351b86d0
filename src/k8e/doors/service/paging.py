"""Pages of lists: as much as one message holds, and where to go on. Making a long one leaves room for other calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["PAGE_BYTES", "page"]

PAGE_BYTES = 4 * 1024 * 1024
"""Of one page; a single item may be larger."""

AT_ONCE = 64
"""Items between two looks at what else there is to do: less than a millisecond."""

T = TypeVar("T")
M = TypeVar("M", bound="Message")


async def page(items: Sequence[T], message_of: Callable[[T], M]) -> list[M]:
    """The messages of the first items, as many as fit."""
    messages: list[M] = []
    size = 0
    for number, item in enumerate(items):
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
        message = message_of(item)
        size += message.ByteSize()
        if messages and size > PAGE_BYTES:
            break
        messages.append(message)
    return messages
