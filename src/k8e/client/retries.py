"""When to ask again, and how long to wait before it.

Asked again is only what cannot happen twice: a call that never left this machine, one that was turned away before
anything was done, and one whose second time finds what the first one left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from k8e.client.errors import Exhausted, SandboxError, Unreachable

__all__ = ["BUDGET_S", "Patience", "pause_s"]

BUDGET_S = 30.0
"""All waiting for one call together; a server that is restarted is back before, on a busy machine, too."""
FIRST_S = 0.05
LONGEST_S = 1.0


class Patience:
    """How much waiting one call has cost since it first failed, the attempts themselves included.

    A server that is starting takes a connection and says nothing yet: then it is the attempts that take the time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def used_s(self) -> float:
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since


def pause_s(
    error: SandboxError, *, attempt: int, waited_s: float, chance: float, repeatable: bool, was_answered: bool
) -> float | None:
    """How long to wait before the next attempt; None means that the error is the answer.

    `chance` is a random number below 1, so that many clients do not come back at once. A server that this client has
    neither heard from nor talked to is not waited for: most likely there is none.
    """
    if isinstance(error, Exhausted) and error.retry_after_s is not None:
        return _affordable(error.retry_after_s * (1 + 0.25 * chance), waited_s)
    if not isinstance(error, Unreachable):
        return None
    if repeatable if error.was_sent else was_answered:
        return _affordable(min(FIRST_S * 2**attempt, LONGEST_S) * (0.5 + 0.5 * chance), waited_s)
    return None


def _affordable(pause: float, waited_s: float) -> float | None:
    return pause if waited_s + pause <= BUDGET_S else None
