"""Who reads one command, and whose leaving ends it.

A command has one reader, the last one that its sandbox has answered. Others may have come for it since: a caller that
lost its connection asks again, and may be refused, or leave before it is answered. Until then the reader before keeps
the command. So a reader that leaves says what it wants done with the command, and that is done only when no
other reader can have it any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from k8e.engine.process import Parting, Process

__all__ = ["Readers"]


class Readers:
    """Of one command, in the order in which they came."""

    def __init__(self) -> None:
        self._there: list[Process] = []
        """The first one has the command; the others wait for their answer."""
        self._left: dict[Process, Parting | None] = {}
        """Of those that have left: what they want done."""

    def __bool__(self) -> bool:
        return bool(self._there)

    def __iter__(self) -> Iterator[Process]:
        """Those that have not left."""
        return (process for process in self._there if process not in self._left)

    def add(self, process: Process) -> None:
        self._there.append(process)

    def leave(self, process: Process, parting: Parting | None) -> None:
        """It reads no more. What it wants done is done now, or when all have left who may have the command instead."""
        if process not in self._there:
            return  # another one was answered after it
        self._left[process] = parting
        answered = [place for place, each in enumerate(self._there) if each.is_answered]
        if answered:
            # The last one that was answered has the command; those before it have no say any more.
            del self._there[: answered[-1]]
        # Those that left without an answer never had it.
        self._there[1:] = [each for each in self._there[1:] if each not in self._left]
        while self._there and self._there[0] in self._left:
            wanted = self._left[self._there[0]]
            if wanted is not None and len(self._there) > 1:
                return  # whoever waits may have the command yet
            del self._there[0]
            if wanted is not None:
                wanted()
        self._left = {each: self._left[each] for each in self._there if each in self._left}
