"""The last output of a process, in memory: for viewers who come, leave and come back.

A viewer that is waited for misses nothing: the process stands still when that one is too far behind. Others miss what is
dropped before they have seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from k8e.engine.process_stream import STDOUT, Output

__all__ = ["RecentOutput"]


class _Viewer:
    def __init__(self, at: int, *, waits: bool) -> None:
        self.at = at
        """The offset of what it is given next."""
        self.waits = waits


class RecentOutput:
    """Of one channel, as a terminal has."""

    truncated = False
    """A viewer sees by the offsets what it has missed."""

    def __init__(self, *, keep_bytes: int) -> None:
        """So much is kept for the next viewer, and so much may one that is waited for be behind."""
        self._keep_bytes = keep_bytes
        self._bytes = bytearray()
        self._start = 0
        """The offset of the first byte that is kept."""
        self._viewers: set[_Viewer] = set()
        self._has_moved = asyncio.Event()
        """Set, and replaced, whenever a viewer takes something or leaves."""

    def open(self, offsets: Mapping[int, int], *, waits: bool) -> _Viewer:
        """A viewer's place: at the offset, or where what is kept begins."""
        viewer = _Viewer(max(self._start, min(offsets.get(STDOUT, 0), self._end())), waits=waits)
        self._viewers.add(viewer)
        return viewer

    def close(self, viewer: _Viewer) -> None:
        """It is gone, and not waited for any more."""
        self._viewers.discard(viewer)
        self._move()

    async def read(self, viewer: _Viewer) -> Output | None:
        """What this viewer has not seen yet."""
        viewer.at = max(viewer.at, self._start)
        payload = bytes(self._bytes[viewer.at - self._start :])
        return Output(STDOUT, viewer.at, payload) if payload else None

    def taken(self, viewer: _Viewer, output: Output) -> None:
        """It has seen this, and asks for more."""
        viewer.at = output.end
        self._move()

    async def add(self, output: Output) -> None:
        """Keep it; waits for viewers that lag by all that is kept: a terminal must not lose bytes on its way to a screen."""
        while self._end() - self._needed_from() > self._keep_bytes:
            await self._has_moved.wait()
        if output.offset != self._end():
            # After a restart of ours: the sandbox has kept only the last bytes.
            self._bytes.clear()
            self._start = output.offset
            for viewer in self._viewers:
                viewer.at = output.offset
        self._bytes += output.payload
        surplus = len(self._bytes) - 2 * self._keep_bytes
        if surplus > 0:
            # Half of what is kept at once, because the rest has to be moved.
            self._drop(min(self._needed_from() - self._start, surplus + self._keep_bytes))

    def _drop(self, count: int) -> None:
        del self._bytes[:count]
        self._start += count

    def _needed_from(self) -> int:
        """The offset of the first byte that a viewer which is waited for has not seen; the end where there is none."""
        return min((viewer.at for viewer in self._viewers if viewer.waits), default=self._end())

    def _end(self) -> int:
        return self._start + len(self._bytes)

    def _move(self) -> None:
        self._has_moved.set()
        self._has_moved = asyncio.Event()
