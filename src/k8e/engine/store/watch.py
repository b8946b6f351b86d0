"""What changes among the records of one kind, for somebody who keeps up with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Self, TypeVar

from k8e.engine.store.changes import Changed, Key
from k8e.errors import Exhausted

__all__ = ["MOST_PENDING", "Watch"]

R = TypeVar("R")
MOST_PENDING: Final = 4096
"""Records whose changes wait for one watcher."""


class Watch(Generic[R]):
    """Changes from the moment it was made, for `async for`; `with` ends it.

    Changes come in the order of their versions and none is lost, but of several that wait for the watcher and concern
    one record only the last is told: a slow watcher hears less often, not later. One with more than 4,096 changed
    records before it is ended by an error, Exhausted, which says to load again.

    To know a kind from its beginning, make the watch first and load then; what the watch tells with a version that the
    load has shown already is known.

    This store is one process's own file, so what is told is what this process has committed. Over a shared store, such
    as a Kubernetes API server, the same loop hears of what others have changed, and the server ends a watch that is too
    old; there, too, the answer is to load again.
    """

    def __init__(self, kind: str, leave: Callable[[Watch[Any]], None]) -> None:
        self.kind = kind
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Key, Changed[R]] = {}
        self._heard = asyncio.Event()
        self._is_over = False
        self._is_behind = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changed[R]:
        while not self._pending:
            if self._is_behind:
                raise Exhausted(f"more than {MOST_PENDING} records of kind {self.kind} have changed unseen: load again")
            if self._is_over:
                raise StopAsyncIteration
            self._heard.clear()
            await self._heard.wait()
        return self._pending.pop(next(iter(self._pending)))

    def close(self) -> None:
        """Hear no more: the loop over it ends."""
        self._leave(self)
        self._is_over = True
        self._pending.clear()
        self._heard.set()

    def tell(self, changes: Sequence[Changed[Any]]) -> None:
        """Called by the thread that has committed them."""
        with contextlib.suppress(RuntimeError):  # the loop of whoever watched has ended
            self._loop.call_soon_threadsafe(self._hear, changes)

    def _hear(self, changes: Sequence[Changed[Any]]) -> None:
        if self._is_over:
            return
        for each in changes:
            # Taken out first, so that it goes to the end: versions only ever grow.
            self._pending.pop(each.key, None)
            self._pending[each.key] = each
        self._heard.set()
        if len(self._pending) > MOST_PENDING:
            # Of what is incomplete nothing is told.
            self._is_behind = True
            self.close()
