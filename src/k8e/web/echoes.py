"""Answers on their way to the older form's stream: bounded, in number and size. Pure but for the waiting.

Each of them is in the body of its own request, too: one that finds no room here is not lost.
"""

from __future__ import annotations

import asyncio

__all__ = ["ANSWER_BYTES", "Echoes"]

ANSWERS = 32
ANSWER_BYTES = 2**20
"""Of one answer; larger ones are only in the body."""
BYTES = 4 * 2**20
"""Of all that wait for the stream's reader."""


class Echoes:
    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._bytes = 0

    def add(self, answer: bytes) -> bool:
        """Whether there was room for it."""
        if self._waiting.qsize() >= ANSWERS or self._bytes + len(answer) > BYTES:
            return False
        self._bytes += len(answer)
        self._waiting.put_nowait(answer)
        return True

    def wake(self) -> None:
        """Let whoever waits look whether there is more to come."""
        self._waiting.put_nowait(b"")

    async def next(self) -> bytes:
        """The next one, empty for one that was only woken."""
        answer = await self._waiting.get()
        self._bytes -= len(answer)
        return answer
