"""Who did what, with what outcome: one record of the audit trail around every call that does something.

Calls that only look leave no record unless they are refused. A record names objects and never holds contents: no
code, no environment, no value of a secret.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from k8e.buckets import Buckets
from k8e.doors.engine import ApprovalView
from k8e.doors.service.call import Call
from k8e.doors.service.errors import outcome
from k8e.doors.service.naming import LOOKS, Names, cut, made, may_stop, objects
from k8e.errors import Denied, K8eError
from k8e.identity.presented import Presented, TcpPeer, UnixPeer

if TYPE_CHECKING:
    from k8e.audit import Fields

__all__ = ["Auditing", "Journal"]

STRANGERS_PER_S, STRANGERS_BURST = 5.0, 100.0
"""Records about callers whom nobody knows: they must not be able to fill the disk."""
LONG_S = 1.0
BEGUN = "BEGUN"
DENIALS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})


class Cancellable(Protocol):
    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Cancellable]


class Journal(Protocol):
    def add(self, fields: Fields) -> None: ...


class Auditing:
    """A step of the edge; `refused` hears of calls that were not let in at all."""

    def __init__(self, journal: Journal, *, clock: Callable[[], float] = time.time, later: Later | None = None) -> None:
        self._journal = journal
        self._later = later or asyncio.get_running_loop().call_later
        self._clock = clock
        self._strangers = Buckets(per_s=STRANGERS_PER_S, burst=STRANGERS_BURST, clock=time.monotonic)
        self._untold = 0

    @contextmanager
    def __call__(self, name: str, call: Call, request: object) -> Iterator[Callable[[object], None]]:
        began, answers = self._clock(), list[object]()
        # A call that lasts is recorded as begun, too: the server may not live to see its end.
        begun = functools.partial(self._add, name, call, request, began, BEGUN)
        lasting = None if name in LOOKS and not may_stop(request) else self._later(LONG_S, begun)
        ended, question = "OK", ""
        try:
            yield answers.append
        except BaseException as error:
            ended, question = outcome(error), error.approval_id if isinstance(error, Denied) else ""
            raise
        finally:
            if lasting is not None:
                lasting.cancel()
            if lasting is not None or ended in DENIALS:
                also = {"approval_id": question} if question else {}
                self._add(name, call, request, began, ended, **made(*answers), **also)

    def at_gate(self, step: str, question: ApprovalView) -> None:
        """A call waits for a person, or has waited: a record of its own, because the server may die meanwhile."""
        self._journal.add(
            {
                "time": round(self._clock(), 3),
                "gate": str(step),
                "approval_id": question.approval_id,
                "session_id": question.session_id,
                "owner": question.owner,
                "identity": question.asked_by,
                "action": cut(question.action),
                "status": str(question.status),
                "decided_by": question.decided_by,
                "reason": cut(question.reason),
            }
        )

    def refused(self, name: str, presented: Presented, error: K8eError) -> None:
        if self._strangers.take(""):
            self._untold += 1
            return
        record: Names = {
            "time": round(self._clock(), 3),
            "rpc": name,
            "identity": "",
            "peer": peer(presented),
            "owner": cut(presented.owner),
            "outcome": outcome(error),
            "detail": cut(str(error)),
        }
        if self._untold:
            record["not_recorded_before"] = self._untold
        self._untold = 0
        self._journal.add(record)

    def _add(
        self, name: str, call: Call, request: object, began: float, ended: str, **also: str | int | float | bool
    ) -> None:
        caller = call.caller
        record = {
            **objects(request),
            **also,
            "time": round(began, 3),
            "duration_ms": int((self._clock() - began) * 1000),
            "identity": caller.identity,
            "owner": call.owner,
            "via": caller.via,
            "rpc": name,
            "outcome": ended,
        }
        self._journal.add(record)


def peer(presented: Presented) -> str:
    match presented.peer:
        case UnixPeer(uid):
            return f"uid:{uid}"
        case TcpPeer(source=(host, port)):
            return f"{host}:{port}"
        case _:
            return ""
