"""Whose turn it is: every sandbox has a lane, and lanes with work go round, however much work each has.

Deficit round robin: a lane pays for what it moved and waits until its credit is back; a lane that runs empty is forgiven,
so a single stream that pauses between its pieces is never behind a lane that is always full. A lane with very many streams
also rests between its rounds while others are active: each stream costs both its ends' processors too, so equal bytes
would not yet be an equal share of the machine. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Bucket", "Lane", "Ring"]

J = TypeVar("J")

_QUANTUM = 256 * 1024
_STEP_COST = 64 * 1024
"""What a turn costs beyond its bytes: many small pieces must not be cheaper than a few big ones."""
_MODESTY_S = 0.001
"""How long a greedy lane rests after each round, while others are active."""
_ACTIVE_S = 0.005
_SMALLEST_REST_S = 0.005


@dataclass(slots=True)
class Bucket:
    """Bytes that may be moved now; a rate of 0 is no limit. A quarter of a second's worth can be saved up."""

    rate: int = 0
    level: float = 0.0
    at: float = 0.0

    def set_rate(self, rate: int, now: float) -> None:
        self.rate, self.level, self.at = rate, min(self.level, rate / 4), now

    def left(self, now: float) -> int | None:
        """None is no limit."""
        if not self.rate:
            return None
        self.level = min(self.rate / 4, self.level + (now - self.at) * self.rate)
        self.at = now
        return int(self.level)

    def take(self, amount: int) -> None:
        if self.rate:
            self.level -= amount

    def rest_s(self, wanted: int) -> float:
        """How long until that much is there."""
        return max(_SMALLEST_REST_S, (min(wanted, self.rate / 4) - self.level) / self.rate)


@dataclass(slots=True, eq=False)
class Lane(Generic[J]):
    """One sandbox's work."""

    bucket: Bucket = field(default_factory=Bucket)
    ready: deque[J] = field(default_factory=deque)
    credit: int = 0
    is_going: bool = False
    """In the ring, or resting until its bucket has filled."""

    @property
    def is_greedy(self) -> bool:
        """Whether it must leave the others more than an equal share."""
        return False


class Ring(Generic[J]):
    """The lanes that have work."""

    def __init__(self, *, smallest: int = 64 * 1024) -> None:
        self._going: deque[Lane[J]] = deque()
        self._resting: dict[Lane[J], float] = {}
        self._smallest = smallest
        """With less than this in its bucket, a lane rests: crumbs cost as much as loaves."""
        self._latest: tuple[Lane[J] | None, float] = (None, 0.0)
        self._before: tuple[Lane[J] | None, float] = (None, 0.0)
        """Of another lane than the latest."""

    def push(self, lane: Lane[J], job: J) -> None:
        lane.ready.append(job)
        if not lane.is_going:
            lane.is_going = True
            self._going.append(lane)

    def next(self, now: float) -> tuple[Lane[J], J, int | None] | None:
        """The job whose turn it is and the most it may move (None: no limit); None when there is nothing to do now."""
        self._wake(now)
        while self._going:
            lane = self._going[0]
            if not lane.ready:
                self._going.popleft()
                lane.is_going, lane.credit = False, 0
            elif lane.credit <= 0:
                lane.credit += _QUANTUM
                if lane.is_greedy and self._others_are_active(lane, now):
                    self._rest(now + _MODESTY_S)
                else:
                    self._going.rotate(-1)
            elif self._is_spent(lane, now):
                self._rest(now + lane.bucket.rest_s(self._smallest))
            else:
                return lane, lane.ready.popleft(), lane.bucket.left(now)
        return None

    def charge(self, lane: Lane[J], moved: int, now: float) -> None:
        lane.credit -= moved + _STEP_COST
        lane.bucket.take(moved)
        if self._latest[0] is not lane:
            self._before = self._latest
        self._latest = (lane, now)

    def rest_s(self, now: float) -> float | None:
        """When the first resting lane goes on; None when none rests."""
        return max(0.0, min(self._resting.values()) - now) if self._resting else None

    def _others_are_active(self, lane: Lane[J], now: float) -> bool:
        other, at = self._before if self._latest[0] is lane else self._latest
        return other is not None and now - at < _ACTIVE_S

    def _rest(self, until: float) -> None:
        self._resting[self._going.popleft()] = until

    def _wake(self, now: float) -> None:
        for lane in [lane for lane, until in self._resting.items() if until <= now]:
            del self._resting[lane]
            self._going.append(lane)

    def _is_spent(self, lane: Lane[J], now: float) -> bool:
        left = lane.bucket.left(now)
        return left is not None and left < min(self._smallest, lane.bucket.rate / 4)
