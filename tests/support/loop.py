"""The event loop of all async tests of a process."""

from __future__ import annotations

import asyncio
from typing import Any

from k8e.client.sync.loop import is_somebody_elses

__all__ = ["Loop"]


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while it does not run.

    One loop serves all async tests of a process and what they share, such as the engine with its pool. Between them come
    tests that know of no loop and may take a minute. By a clock that goes on, a boot that was under way would be overdue
    at the next async test.
    """

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._stopped_for = 0.0
        super().__init__()

    def time(self) -> float:
        return (super().time() if self._stopped_at is None else self._stopped_at) - self._stopped_for

    def run_forever(self) -> None:
        if self._stopped_at is not None:
            self._stopped_for += super().time() - self._stopped_at
            self._stopped_at = None
        try:
            super().run_forever()
        finally:
            self._stopped_at = super().time()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What was meant for the closed loop of another test is no failure of this one."""
        if not is_somebody_elses(context):
            super().call_exception_handler(context)
