"""An event loop in a thread of its own, for callers that have none, or have one that is busy (notebooks)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

__all__ = ["LoopThread", "is_somebody_elses"]

R = TypeVar("R")

SETTLE_S = 2.0
"""How long an interrupted call may take to tell the server; without an answer the connection's end tells it."""


class LoopThread:
    """One event loop in one daemon thread; a forked child gets another of its own."""

    def __init__(self) -> None:
        self._closed = False
        self._inherited: list[asyncio.AbstractEventLoop] = []
        # Both are re-entrant: a stream that was forgotten is closed by whichever call its collection happens to meet.
        self._starting = threading.RLock()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._submitting = threading.RLock()
        """Held while a call is handed over, and while closing begins: no call comes after those that are ended."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_handle)
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name="k8e client", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run to the end; an interrupt here cancels it there, and waits until that is said."""
        ended = threading.Event()
        try:
            self._ready()
            with self._submitting:
                self._check_open()
                future = asyncio.run_coroutine_threadsafe(_announced(coroutine, ended), self._loop)
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(SETTLE_S)
            raise

    def finish(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run to the end what cleans up after a caller; nothing where the loop, whose end does so too, is closed.

        In the loop's own thread it is not waited for: there the collector may have found what a caller has forgotten.
        """
        if self._closed:
            coroutine.close()
        elif self._is_own_thread():
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        else:
            self.wait(coroutine)

    def is_open(self) -> bool:
        return not self._closed

    def close(self) -> None:
        """Stop the thread; once is enough."""
        if self._closed:
            return
        self._ready()
        with self._submitting:
            self._closed = True
        # Other threads may still wait for answers: each is woken, because from now on nobody answers.
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def abandon(self) -> None:
        """Let the thread end by itself, without waiting: for clients that were forgotten."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed: make another")

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread and self._pid == os.getpid()

    def _ready(self) -> None:
        """Have a loop that runs in this process. Raises: RuntimeError."""
        self._check_open()
        if self._is_own_thread():
            raise RuntimeError("called from the client's own thread (a callback?), which would wait for itself")
        with self._starting:
            if self._pid != os.getpid():
                # Threads do not survive a fork. The loop is kept untouched: its selector is shared with the parent.
                self._inherited.append(self._loop)
                self._start()


def is_somebody_elses(trouble: Mapping[str, Any]) -> bool:
    """Whether grpc stumbled over an event that came too late for a loop which is closed by now.

    It has one queue for all loops of a process, and whichever reads first hands each event to its own: so the error is
    met by a loop that has nothing to do with it. Nobody waits for that event any more.
    """
    is_closed = isinstance(trouble.get("exception"), RuntimeError) and "is closed" in str(trouble["exception"])
    return is_closed and "PollerCompletionQueue" in str(trouble.get("message"))


def _handle(loop: asyncio.AbstractEventLoop, trouble: dict[str, Any]) -> None:
    if not is_somebody_elses(trouble):
        loop.default_exception_handler(trouble)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=SETTLE_S)


async def _announced(coroutine: Coroutine[Any, Any, R], ended: threading.Event) -> R:
    try:
        return await coroutine
    finally:
        ended.set()
