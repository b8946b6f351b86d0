"""Whoever watches the engine at work: told of what happened, asked for nothing."""

from __future__ import annotations

from typing import Protocol

from k8e.model import ApprovalStatus, Outcome, Runtime

__all__ = ["UNOBSERVED", "Observer"]


class Observer(Protocol):
    """Called in the engine's loop, within the context of the call that caused it; must cost microseconds."""

    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None:
        """A session has its sandbox."""
        ...

    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None:
        """A command has ended; without an outcome its caller went away first."""
        ...

    def approval(self, status: ApprovalStatus) -> None:
        """A question was put, or answered."""
        ...


class _Unobserved:
    def claimed(self, runtime: Runtime, *, warm: bool, took_s: float) -> None:
        pass

    def executed(self, runtime: Runtime, outcome: Outcome | None, *, took_s: float) -> None:
        pass

    def approval(self, status: ApprovalStatus) -> None:
        pass


UNOBSERVED: Observer = _Unobserved()
