"""Reading and writing the engine's own files off the event loop: on one thread, in the order in which it was asked for.

Whoever asks waits for it, so as much can be pending as there are runs and commands, one piece each. A slow disk holds up
them alone, and each other in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["FileWorker"]

T = TypeVar("T")


class FileWorker:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "k8e-files")

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

    def close(self) -> None:
        """Blocking until all that was asked for is done."""
        self._thread.shutdown(wait=True)
