"""Connections whose first request has not arrived, bounded per user, so that no user can keep the others out.

A user who opens too many loses the oldest of its own. Where the total is reached, the user with the most loses its oldest.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["PendingConnections"]

_T = TypeVar("_T", bound=Hashable)


class PendingConnections(Generic[_T]):
    def __init__(self, *, each: int, all: int) -> None:
        """At most `each` of one user and `all` together; zero means no bound."""
        self._each = each
        self._all = all
        self._waiting: dict[Hashable, dict[_T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, whose: Hashable) -> int:
        """How many this user has."""
        return len(self._waiting.get(whose, ()))

    def add(self, whose: Hashable, member: _T) -> _T | None:
        """Add one; returns the connection that has to be closed for it, already removed here."""
        leaving = self._evicted_for(whose)
        self._waiting.setdefault(whose, {})[member] = None
        self._count += 1
        return leaving

    def discard(self, whose: Hashable, member: _T) -> None:
        """Its request has arrived, or it is closed. Safe to repeat."""
        theirs = self._waiting.get(whose)
        if theirs is None or member not in theirs:
            return
        del theirs[member]
        self._count -= 1
        if not theirs:
            del self._waiting[whose]

    def pop(self, whose: Hashable = None) -> _T | None:
        """Remove and return the oldest of this user, or of the user with the most."""
        if whose is None and self._waiting:
            whose = max(self._waiting, key=self.of)
        oldest = next(iter(self._waiting.get(whose, ())), None)
        if oldest is not None:
            self.discard(whose, oldest)
        return oldest

    def _evicted_for(self, whose: Hashable) -> _T | None:
        if 0 < self._each <= self.of(whose):
            return self.pop(whose)
        return self.pop() if 0 < self._all <= self._count else None
