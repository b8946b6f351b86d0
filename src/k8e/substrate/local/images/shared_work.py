"""Work on images that several callers want: done once for all of them, and in turns among owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from k8e.errors import K8eError, SandboxFailed
from k8e.model import ImageProgress, OwnerId

__all__ = ["Heard", "OwnerTurns", "SharedWork"]

Heard = Callable[[ImageProgress], None]


class SharedWork:
    """The first who asks works; whoever comes meanwhile hears of the same progress and has the same result."""

    def __init__(self) -> None:
        self._running: dict[str, _Work] = {}

    async def run(self, key: str, heard: Heard, work: Callable[[Heard], Awaitable[str]]) -> str:
        """Raises: what `work` raises."""
        if (running := self._running.get(key)) is not None:
            return await running.wait(heard)
        running = self._running[key] = _Work(heard)
        try:
            result = await work(running.tell)
        except BaseException as error:
            running.fail(error)
            raise
        else:
            running.succeed(result)
            return result
        finally:
            del self._running[key]


class _Work:
    def __init__(self, heard: Heard) -> None:
        self._listeners = [heard]
        self._last: ImageProgress | None = None
        self._result: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(self, heard: Heard) -> str:
        if self._last is not None:
            heard(self._last)
        self._listeners.append(heard)
        try:
            return await asyncio.shield(self._result)
        finally:
            self._listeners.remove(heard)

    def tell(self, progress: ImageProgress) -> None:
        self._last = progress
        for heard in list(self._listeners):
            heard(progress)

    def succeed(self, result: str) -> None:
        self._result.set_result(result)

    def fail(self, error: BaseException) -> None:
        self._result.set_exception(error if isinstance(error, K8eError) else SandboxFailed("image", repr(error)))
        self._result.exception()  # it may be that nobody waits, and asyncio would complain that nobody asked


class OwnerTurns:
    """So many at once for all, and one fewer of one owner, so that an owner alone cannot hold up the others."""

    def __init__(self, at_once: int) -> None:
        self._all = asyncio.Semaphore(at_once)
        self._of_one = max(1, at_once - 1)
        self._owners: dict[OwnerId, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, owner: OwnerId) -> AsyncIterator[None]:
        own, users = self._owners.get(owner, (asyncio.Semaphore(self._of_one), 0))
        self._owners[owner] = (own, users + 1)
        try:
            async with own, self._all:
                yield
        finally:
            _, users = self._owners.pop(owner)
            if users > 1:
                self._owners[owner] = (own, users - 1)
