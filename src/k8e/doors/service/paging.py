"""Pages of lists: as much as one message holds, and where to go on. Making a long one leaves room for other calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from k8e.loop_turns import InTurns
from k8e.model import PAGE_BYTES

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["page"]

T = TypeVar("T")
M = TypeVar("M", bound="Message")


async def page(items: Sequence[T], message_of: Callable[[T], M]) -> list[M]:
    """The messages of the first items, as many as fit a page; a single one may be larger."""
    messages: list[M] = []
    size = 0
    async for item in InTurns(items):
        message = message_of(item)
        size += message.ByteSize()
        if messages and size > PAGE_BYTES:
            break
        messages.append(message)
    return messages
