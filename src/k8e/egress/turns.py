"""Turns for work that is done in Python: one connection of a sandbox at a time, a moment each.

Sockets that are always ready never make a coroutine wait, so one busy connection could keep the loop for itself, and a
sandbox with many of them could keep it for them all.
"""

from __future__ import annotations

import asyncio
import time

__all__ = ["Turns", "Worker"]

_TURN_S = 0.001


class Turns:
    """One sandbox's."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Wait for the sandbox's other connections that wait, and let the loop look after everybody else."""
        async with self._lock:
            await asyncio.sleep(0)


class Worker:
    """One connection that works in turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._until = 0.0

    async def breathe(self) -> None:
        """To be called between any two pieces of work; waits when the turn is over."""
        if time.monotonic() >= self._until:
            await self._turns.next()
            self._until = time.monotonic() + _TURN_S
