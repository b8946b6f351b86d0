"""One thread at a time per name: what builds, changes and removes a sandbox never does so at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class Turns:
    """A lock for every name; a name that nobody holds or waits for costs nothing."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[threading.Lock, int]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Wait for the turn, and hold it in the block."""
        lock = self._join(name)
        try:
            with lock:
                yield
        finally:
            self._leave(name)

    def _join(self, name: str) -> threading.Lock:
        with self._guard:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
            return lock

    def _leave(self, name: str) -> None:
        with self._guard:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = (lock, users - 1)
