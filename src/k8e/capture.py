"""Output kept up to a bound: what a unary call returns and what a transcript remembers."""

from __future__ import annotations

import io

from k8e.byte_budget import Reserve, unlimited

__all__ = ["Capture"]


class Capture:
    """Keeps the first bytes of a stream, as many as there is room for, and counts the rest."""

    __slots__ = ("_buffer", "_has_room", "_kept", "_reserve", "limit", "total")

    def __init__(self, limit: int, reserve: Reserve = unlimited) -> None:
        self.limit = limit
        self.total = 0
        self._reserve = reserve
        self._has_room = True
        # Grows as it is filled and is handed out as it is: to put many pieces together at the end would hold up others.
        self._buffer = io.BytesIO()
        self._kept = 0

    def add(self, payload: bytes, offset: int | None = None) -> None:
        """What comes next, or comes at `offset`: what is missing before it counts as cut off, and so does the rest."""
        if offset is not None and offset > self.total:
            self.total = offset
            self._has_room = False
        self.total += len(payload)
        piece = payload[: max(self.limit - self._kept, 0)]
        if not piece or not self._has_room:
            return
        if not self._reserve(len(piece)):
            # What came later must not stand where this is missing.
            self._has_room = False
            return
        self._buffer.write(piece)
        self._kept += len(piece)

    @property
    def is_truncated(self) -> bool:
        return self.total > self._kept

    def value(self) -> bytes:
        return self._buffer.getvalue()
