"""How much of the server's memory one user's unread requests may hold at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from k8e.errors import Exhausted

__all__ = ["Allowances", "Held"]


class Allowances:
    """What each user's requests hold; nobody's uploads leave too little for another's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[int] = Counter()

    @contextmanager
    def open(self, uid: int) -> Iterator[Held]:
        held = Held(self, uid)
        try:
            yield held
        finally:
            held.become(0)

    def change(self, uid: int, by: int) -> None:
        """Raises: Exhausted when it would be too much."""
        if by > 0 and self._held[uid] + by > self._most:
            raise Exhausted("your requests hold too much memory; wait for those that run", retry_after_s=1.0)
        self._held[uid] += by
        if not self._held[uid]:
            del self._held[uid]


class Held:
    """One request's part."""

    def __init__(self, allowances: Allowances, uid: int) -> None:
        self._allowances = allowances
        self._uid = uid
        self._bytes = 0

    def become(self, size: int) -> None:
        """Raises: Exhausted; what was held before is then still held."""
        self._allowances.change(self._uid, size - self._bytes)
        self._bytes = size
