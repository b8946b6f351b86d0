"""Blocking work beside the event loop, never abandoned half-way by a cancelled caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A bounded set of threads for one kind of work."""

    def __init__(self, name: str, workers: int) -> None:
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`. A cancelled caller still waits for its end: what it builds must not appear later."""
        running = self._executor.submit(work, *args, **kwargs)
        future = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Asked of the thread's own future: that of the event loop can be cancelled while the thread goes on.
            if not running.cancel():
                await _end(future)
            raise


async def _end(future: asyncio.Future[T]) -> None:
    """Wait for it, also when the caller is cancelled again meanwhile."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    future.exception()  # whoever was cancelled does not want to know, and asyncio would complain that nobody asked
