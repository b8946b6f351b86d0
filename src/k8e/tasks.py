"""Long-lived work with a name and a parent: one group for everything the engine owns.

A request only waits on such a task; cancelling the request never cuts the work short. A failure of one task is
logged and stays its own: it must not bring the neighbours down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from k8e.errors import K8eError

__all__ = ["Tasks", "outcome_of"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Tasks:
    """An asyncio.TaskGroup whose members fail alone; leaving it cancels them and waits."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._live: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._live:
            task.cancel()
        # The group is not told of an error on its way through: it would wrap it, and callers catch ours by name.
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T | None]:
        """Run it; its result is None when it failed (the failure is in the log)."""
        task = self._group.create_task(_alone(work, name), name=name)
        self._live.add(task)
        task.add_done_callback(self._live.discard)
        # Cancelled before its first step the work was never begun, and Python would complain about that.
        task.add_done_callback(lambda _task: work.close())
        return task

    def repeat(self, work: Callable[[], Awaitable[None]], *, every_s: float, name: str) -> None:
        """Do it for ever, for the first time after a pause. A round that fails is logged, and the next one comes all the same."""

        async def rounds() -> None:
            while True:
                await asyncio.sleep(every_s)
                try:
                    await work()
                except (K8eError, OSError) as error:
                    _log.warning("one round of a background task failed", extra={"task": name, "error": str(error)})
                except Exception:  # noqa: BLE001  # as for every task of the engine's own
                    _log.exception("one round of a background task failed", extra={"task": name})

        self.start(rounds(), name=name)

    async def finish(self, work: Coroutine[Any, Any, _T], *, name: str) -> _T:
        """Its result; whoever is cancelled meanwhile leaves it going on to its end. Raises: what it raises of ours."""
        results: list[_T] = []

        async def kept() -> None:
            results.append(await work)

        error = await asyncio.shield(self.start(outcome_of(kept()), name=name))
        if not results:
            raise error or K8eError(f"{name} failed: see the server's log")
        return results[0]


async def outcome_of(work: Coroutine[Any, Any, _T]) -> _T | K8eError:
    """Its result, or the error that whoever waits for the task is to hear; any other is a failure of the task."""
    try:
        return await work
    except K8eError as error:
        return error


async def _alone(work: Coroutine[Any, Any, _T], name: str) -> _T | None:
    try:
        return await work
    except Exception:  # noqa: BLE001  # the top handler of the engine's own tasks
        _log.exception("a background task failed", extra={"task": name})
        return None
