"""Several observers as one."""

from __future__ import annotations

from typing import Protocol

from k8e.model import ApprovalStatus, Outcome, Runtime

__all__ = ["Several"]


class Observer(Protocol):
    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None: ...
    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None: ...
    def approval(self, status: ApprovalStatus) -> None: ...


class Several:
    """Tells each of them, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None:
        for each in self._observers:
            each.claimed(runtime, warm=warm, took_s=took_s)

    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None:
        for each in self._observers:
            each.executed(runtime, outcome, took_s=took_s)

    def approval(self, status: ApprovalStatus) -> None:
        for each in self._observers:
            each.approval(status)
