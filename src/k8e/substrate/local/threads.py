"""Blocking work beside the event loop, never abandoned half-way by a cancelled caller."""

from __future__ import annotations

import asyncio
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
        future = asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.cancel():
                await asyncio.wait([future])
            raise
