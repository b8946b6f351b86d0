"""Whether a client is still there, told by what it has open here. Pure but for the event that says that it changed.

A client that keeps a stream open says by it that it is there; when that and everything else is closed, it has a grace to
come back. One that never had a stream can only be told by its requests, and may think for a while between two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Patience", "Presence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    grace_s: float = 60.0
    """For a client whose stream is gone."""
    idle_s: float = 1800.0
    """For a client that has no stream, since its last request."""


class Presence:
    def __init__(self, patience: Patience, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._clock = clock
        self._open = 0
        self._streams = 0
        self._had_stream = False
        self._left_at = clock()
        self._changed = asyncio.Event()

    @contextmanager
    def here(self, *, is_stream: bool = False) -> Iterator[None]:
        """While something of the client's is open."""
        self._open += 1
        self._streams += is_stream
        self._had_stream = self._had_stream or is_stream
        try:
            yield
        finally:
            self._open -= 1
            self._streams -= is_stream
            self._left_at = self._clock()
            self._changed.set()

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked something and has no answer yet."""
        return self._open > self._streams

    def left_s(self) -> float | None:
        """How long it may still be away; None while it is here."""
        if self._open:
            return None
        allowed = self._patience.grace_s if self._had_stream else self._patience.idle_s
        return self._left_at + allowed - self._clock()

    async def gone(self) -> None:
        """Wait until it has been away for too long."""
        while (left := self.left_s()) is None or left > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue
