"""Reading and writing the engine's own files off the event loop, on threads that are for nothing else.

Whatever writes, and what must not come between, is done by one thread in the order in which it was asked for. Whoever asks
waits for it, so as much can be pending as there are runs and commands, one piece each. What is only read for a caller has
threads of its own, and of them an owner has one at a time. So a slow disk holds up those who need it, and an owner's many
readers hold up only each other.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from k8e.model import OwnerId

__all__ = ["FileWorker"]

T = TypeVar("T")

_READING_THREADS: Final = 8
"""Owners that are read for at the same time; the others wait for their turn."""


class FileWorker:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "k8e-files")
        self._reading = ThreadPoolExecutor(_READING_THREADS, "k8e-read")
        self._turns: weakref.WeakValueDictionary[OwnerId, asyncio.Lock] = weakref.WeakValueDictionary()

    async def run(self, work: Callable[[], T]) -> T:
        """Do it and return what it returns. Once asked for it is done, and a waiter that is cancelled leaves only then:
        whatever comes after must not meet it half-way.
        """
        job = asyncio.get_running_loop().run_in_executor(self._thread, work)
        cancelled: asyncio.CancelledError | None = None
        while not job.done():
            try:
                await asyncio.wait({job})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            job.exception()  # nobody hears of it any more
            raise cancelled
        return job.result()

    async def read(self, owner: OwnerId, work: Callable[[], T]) -> T:
        """Do what changes nothing, and return what it returns; of one owner one thing after the other.

        A waiter that is cancelled leaves at once, and its owner's turn lasts until the thread is free again.
        """
        turn = self._turns.setdefault(owner, asyncio.Lock())
        await turn.acquire()
        job = asyncio.get_running_loop().run_in_executor(self._reading, work)

        def over(job: asyncio.Future[T]) -> None:
            if not job.cancelled():
                job.exception()  # whoever waits hears of it; where nobody does any more it is nobody's
            turn.release()

        job.add_done_callback(over)
        return await asyncio.shield(job)

    def close(self) -> None:
        """Blocking until all that was asked of `run` is done; nobody waits any more for what is read."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown(wait=True)
