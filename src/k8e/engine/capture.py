"""Output kept up to a bound: what a unary call returns and what a transcript remembers."""

from __future__ import annotations

__all__ = ["Capture"]


class Capture:
    """Keeps the first bytes of a stream and counts the rest."""

    __slots__ = ("_kept", "_pieces", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._pieces: list[bytes] = []
        self._kept = 0

    def add(self, payload: bytes) -> None:
        self.total += len(payload)
        room = self.limit - self._kept
        if room > 0:
            self._pieces.append(payload[:room])
            self._kept += len(self._pieces[-1])

    @property
    def is_truncated(self) -> bool:
        return self.total > self._kept

    def value(self) -> bytes:
        return b"".join(self._pieces)
