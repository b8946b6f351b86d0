"""One thread that writes a file: what is handed in while the disk is busy shares the next transaction.

So a burst of claims costs a handful of commits. A commit that fails, fails its own caller: if a shared transaction cannot
be written, each of its commits is tried by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from k8e.engine.store.changes import Changed
from k8e.engine.store.sqlite import Database, Written
from k8e.errors import K8eError, StoreFailed

__all__ = ["Writer"]

_log = logging.getLogger(__name__)

C = TypeVar("C")
_MAX_GROUP: Final = 256


@dataclass(frozen=True, slots=True)
class _Commit(Generic[C]):
    changes: Sequence[C]
    done: asyncio.Future[int] | None


class Writer(Generic[C]):
    """Takes commits in the order in which they are handed in; `close` waits for all of them."""

    def __init__(
        self,
        database: Database[C],
        *,
        linger_s: float = 0.0,
        tell: Callable[[Sequence[Changed[Any]]], None] = lambda _changed: None,
    ) -> None:
        """Commits that nobody waits for may linger for a moment, so that one transaction takes many of them.

        `tell` is called by the thread with what a transaction has changed, before anybody's `commit` returns.
        """
        self._database = database
        self._linger_s = linger_s
        self._tell = tell
        self._queue: queue.SimpleQueue[_Commit[C] | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="store writer", daemon=True)
        self._thread.start()

    async def commit(self, changes: Sequence[C]) -> int:
        """Make the changes durable, all or none; the version that they have. Raises: StoreFailed, Conflict."""
        self._check_open()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.put(_Commit(changes, done))
        return await done

    def post(self, changes: Sequence[C]) -> None:
        """Hand in changes without waiting; a failure is logged. Raises: StoreFailed after the end."""
        self._check_open()
        self._queue.put(_Commit(changes, None))

    def close(self) -> None:
        """Finish what was handed in, then close the file."""
        self._is_closed = True
        self._hurry.set()
        self._queue.put(None)
        self._thread.join()
        self._database.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreFailed(f"{self._database.path} is closed: nothing more is written down")

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            if self._linger_s and first.done is None:
                self._hurry.wait(self._linger_s)
            group = [first]
            closing = False
            while len(group) < _MAX_GROUP and not self._queue.empty():
                commit = self._queue.get()
                if commit is None:
                    closing = True
                    break
                group.append(commit)
            self._write_group(group)
            if closing:
                return

    def _write_group(self, group: Sequence[_Commit[C]]) -> None:
        try:
            applied = self._database.transact([commit.changes for commit in group])
        except Exception as error:  # noqa: BLE001 - the thread is everybody's: whatever it meets, it goes on
            if len(group) > 1:
                # One bad change must fail its own caller, not the neighbours it shared a transaction with.
                for commit in group:
                    self._write_group([commit])
            else:
                _finish(group[0], error if isinstance(error, K8eError) else StoreFailed(repr(error)))
            return
        if changed := [each for result in applied if isinstance(result, Written) for each in result.changed]:
            self._tell(changed)
        for commit, result in zip(group, applied, strict=True):
            _finish(commit, result.version if isinstance(result, Written) else result)


def _finish(commit: _Commit[Any], result: int | K8eError) -> None:
    if commit.done is not None:
        with contextlib.suppress(RuntimeError):  # the loop of whoever waited has ended
            commit.done.get_loop().call_soon_threadsafe(_settle, commit.done, result)
    elif isinstance(result, K8eError):
        _log.error("a change was not written down", extra={"error": str(result)})


def _settle(done: asyncio.Future[int], result: int | K8eError) -> None:
    if done.done():
        return
    if isinstance(result, K8eError):
        done.set_exception(result)
    else:
        done.set_result(result)
