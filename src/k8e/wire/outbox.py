"""Retention: the bytes of one channel, at absolute offsets, from their birth until they are acknowledged.

An outbox never holds more than its limit, which is also the channel's window, and it outlives any link.
"""

from __future__ import annotations

from collections import deque

from .frames import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque

__all__ = ["STDIN_WINDOW", "WINDOW", "Outbox", "window"]

WINDOW = 1024 * 1024
STDIN_WINDOW = 256 * 1024
_SMALL_CHUNK = 4096


def window(channel: int) -> int:
    """How many unacknowledged bytes a channel may have."""
    return STDIN_WINDOW if channel == 0 else WINDOW


class Outbox:
    """Bytes of one channel that the receiver has not acknowledged, at absolute offsets."""

    __slots__ = ("_chunks", "base", "end", "finished", "limit")

    def __init__(self, limit: int = WINDOW, start: int = 0) -> None:
        self._chunks: Deque[bytes] = deque()
        self.base = start
        self.end = start
        self.finished = False
        self.limit = limit

    @property
    def room(self) -> int:
        """How many bytes may be appended now."""
        return self.limit - (self.end - self.base)

    def append(self, data: bytes) -> None:
        """Retain `data`; the caller has looked at `room`."""
        chunks = self._chunks
        if chunks and len(chunks[-1]) + len(data) <= _SMALL_CHUNK:
            chunks[-1] += data  # line-wise output must not cost an object per line
        elif data:
            chunks.append(data)
        self.end += len(data)

    def finish(self) -> None:
        """Nothing will be appended any more."""
        self.finished = True

    def shift(self, start: int) -> None:
        """Move an outbox of which nothing has been sent: its first byte is at `start`."""
        self.base, self.end = start, self.end - self.base + start

    def ack(self, offset: int) -> None:
        """Forget whole chunks before `offset`; an old acknowledgement changes nothing."""
        if offset > self.end:
            raise ProtocolError("acknowledged %d of %d bytes" % (offset, self.end))
        if offset <= self.base:
            return
        chunks, start = self._chunks, self.end - sum(map(len, self._chunks))
        while chunks and start + len(chunks[0]) <= offset:
            start += len(chunks.popleft())
        self.base = offset

    def read(self, offset: int, limit: int) -> memoryview:
        """Up to `limit` bytes at `offset`, without a copy; empty at the end. `base <= offset <= end`."""
        start = self.end
        for chunk in reversed(self._chunks):
            start -= len(chunk)
            if start <= offset:
                return memoryview(chunk)[offset - start : offset - start + limit]
        return memoryview(b"")
