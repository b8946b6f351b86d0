"""Parked interpreters (stub)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


class Parking:
    def __init__(self, loop, runners) -> None:
        self.pids: List[int] = []

    def refill(self) -> None: ...

    def when_ready(self, action: Callable[[], None]) -> None:
        action()

    def start(self, subject, launch, program, code) -> bool:
        return False
