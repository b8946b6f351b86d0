"""Bounds on memory: how many bytes the requests or answers of one caller, and of all callers, may hold at a time.

The event loop and the thread that encodes answers both count here, so every change is made under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["ByteBudget", "ByteReservation", "Reserve", "unlimited"]

Reserve = Callable[[int], bool]
"""Takes so many bytes more, or returns False where there is no memory for them."""

PER_OWNER = 256 * 1024 * 1024
TOTAL = 1024 * 1024 * 1024
FLOOR = 16 * 1024 * 1024


def unlimited(count: int) -> bool:
    """Memory that nobody counts."""
    return True


class ByteBudget:
    """Bytes in use, counted by owner. However many others hold, each owner may hold `floor`."""

    def __init__(self, *, per_owner: int = PER_OWNER, total: int = TOTAL, floor: int = FLOOR) -> None:
        self._per_owner = per_owner
        self._total = total
        self._floor = floor
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._held_by_all = 0

    def open(self, owner: str) -> ByteReservation:
        """For one answer, to be closed when it is sent."""
        return ByteReservation(self, owner)

    def change(self, reservation: ByteReservation, count: int) -> bool:
        """Add to a reservation, or take from it. False when that is too much or it is closed; then nothing changes."""
        with self._lock:
            owned = self._held.get(reservation.owner, 0) + count
            is_within = owned <= self._floor or self._held_by_all + count <= self._total
            if reservation.is_closed or (count > 0 and (owned > self._per_owner or not is_within)):
                return False
            self._set(reservation.owner, owned)
            self._held_by_all += count
            reservation.bytes += count
            return True

    def close(self, reservation: ByteReservation) -> None:
        with self._lock:
            reservation.is_closed = True
            self._set(reservation.owner, self._held.get(reservation.owner, 0) - reservation.bytes)
            self._held_by_all -= reservation.bytes
            reservation.bytes = 0

    def held(self) -> int:
        """By all together."""
        return self._held_by_all

    def _set(self, owner: str, count: int) -> None:
        if count:
            self._held[owner] = count
        else:
            self._held.pop(owner, None)


class ByteReservation:
    """The bytes of one request or answer, until it is closed."""

    __slots__ = ("_budget", "bytes", "is_closed", "owner")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self.owner = owner
        self.bytes = 0
        self.is_closed = False

    def grow(self, count: int) -> bool:
        """Hold so many bytes more; False when that is too much, and then it holds what it did."""
        return self._budget.change(self, count)

    def resize(self, count: int) -> bool:
        """Hold exactly so many bytes; False as for `grow`."""
        return self._budget.change(self, count - self.bytes)

    def close(self) -> None:
        """Give everything back; from now on it holds nothing. Said twice it counts once."""
        self._budget.close(self)
