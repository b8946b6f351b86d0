"""Slots made ahead, so that a new sandbox finds its network ready.

Indices go round: an address comes back only when all others have had their turn, also across restarts.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from pathlib import Path

from k8e.egress.links import Slot
from k8e.egress.router import Router
from k8e.egress.ruleset import FIRST_INDEX, LAST_INDEX

__all__ = ["Indices", "Spares"]

_log = logging.getLogger(__name__)

_SPARES = 24
_QUIET_S = 0.3
"""Not while the sandbox that took the last one boots: a slot that is made beside it costs it 30 ms (measured with runc),
while one that is made for it costs 7."""
_RETRY_S = 1.0
_RESERVED = 64


class Indices:
    """Numbers for slots."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = _read(file)
        self._reserved = self._next

    def take(self, used: frozenset[int]) -> int:
        """One that is not in use. Raises: OSError."""
        while True:
            index = self._next
            self._reserve(index)
            self._next = index + 1 if index < LAST_INDEX else FIRST_INDEX
            if index not in used:
                return index

    def _reserve(self, index: int) -> None:
        """Written ahead in blocks: a crash skips some, and repeats none."""
        if index != self._reserved:
            return
        reserved = min(index + _RESERVED, LAST_INDEX + 1)
        if reserved > LAST_INDEX:
            reserved = FIRST_INDEX
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(reserved), encoding="ascii")
        partial.replace(self._file)
        # Only now: what could not be written, on a full disk, is not reserved.
        self._reserved = reserved


def _read(file: Path) -> int:
    try:
        index = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return FIRST_INDEX
    return index if FIRST_INDEX <= index <= LAST_INDEX else FIRST_INDEX


class Spares:
    """The slots that wait. They are held by descriptors only, so none outlives the daemon."""

    def __init__(self, router: Router, indices: Indices, used: frozenset[int]) -> None:
        self._router = router
        self._indices = indices
        self._used = set(used)
        self._ready: collections.deque[Slot] = collections.deque()
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    async def take(self) -> Slot:
        """The next one, made now if none waits. Raises: OSError."""
        self._taken.set()
        if self._ready:
            return self._ready.popleft()
        try:
            return await self._make()
        except OSError as error:
            # The kernel may still hold the name of a link that we know to be gone: the next index has another.
            _log.warning("a slot could not be made; another is tried", extra={"error": str(error)})
            return await self._make()

    def free(self, index: int) -> None:
        """Its slot is gone, so the index may come round again."""
        self._used.discard(index)

    async def keep_full(self) -> None:
        """Make up for what was taken, while things are quiet."""
        while True:
            try:
                while len(self._ready) < _SPARES and not self._taken.is_set():
                    self._ready.append(await self._make())
            except OSError as error:
                _log.warning("a slot could not be made ahead", extra={"error": str(error)})
                await asyncio.sleep(_RETRY_S)
                self._taken.set()  # try again
            await self._quiet()

    async def _quiet(self) -> None:
        """Until some were taken, and for a while no more."""
        await self._taken.wait()
        while self._taken.is_set():
            self._taken.clear()
            await asyncio.sleep(_QUIET_S)

    async def _make(self) -> Slot:
        index = self._indices.take(frozenset(self._used))
        self._used.add(index)
        try:
            return await asyncio.to_thread(self._router.slot, index)
        except OSError:
            self._used.discard(index)
            raise

    def close(self) -> None:
        while self._ready:
            self._ready.popleft().close()
