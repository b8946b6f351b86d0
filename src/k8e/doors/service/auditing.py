"""Who did what, with what outcome: one record of the audit trail around every call that does something.

Calls that only look leave no record unless they are refused. A record names objects and never holds contents: no
code, no environment, no value of a secret.

Every call that did something is written whole. One owner's are in the main trail up to a bound a minute and in a second
trail beyond it, so that nobody pushes out what others did. Refusals are written whole a few times, then counted.

A refusal is a call that failed at its beginning: before it waited for anything, and before more than the first message of
a stream was read. Whatever changes something, a sandbox, a file or the store, is waited for, so by then nothing was done.
Where that is not certain, as after an error from inside a sandbox, the call is written whole.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from k8e.audit import BUSY_NOTE
from k8e.buckets import Buckets
from k8e.doors.service.call import Call
from k8e.doors.service.edge import Stream
from k8e.doors.service.errors import outcome
from k8e.doors.service.naming import LOOKS, Names, cut, made, may_stop, objects
from k8e.doors.service.record_quota import SEVERAL, Later, RecordQuota
from k8e.engine.approvals import Approval
from k8e.errors import Denied, K8eError
from k8e.identity.presented import Presented, TcpPeer, UnixPeer

if TYPE_CHECKING:
    from k8e.audit import Fields

__all__ = ["Auditing", "Journal"]

STRANGERS_PER_S, STRANGERS_BURST = 0.1, 100.0
"""Records about callers whom nobody knows: they must not be able to fill the trail. At this rate they need months."""
OWNER_RECORDS = 300
"""Records of one owner a minute in the main trail: a gigabyte of it lasts for days even at this rate."""
REFUSALS_IN_FULL = 3
"""Of one identity, one call and one outcome, a minute."""
LONG_S = 1.0
BEGUN = "BEGUN"
DENIALS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
REFUSALS = DENIALS | {"INVALID_ARGUMENT", "NOT_FOUND", "ABORTED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
"""Outcomes of calls that did nothing, where they come at the beginning."""


class Journal(Protocol):
    def add(self, fields: Fields) -> None: ...


class Auditing:
    """A step of the edge; `refused` hears of calls that were not let in at all."""

    def __init__(
        self,
        journal: Journal,
        *,
        busy: Journal | None = None,
        owner_records: int = OWNER_RECORDS,
        clock: Callable[[], float] = time.time,
        later: Later | None = None,
    ) -> None:
        """`busy` takes what an owner does beyond `owner_records` a minute."""
        self._journal = journal
        self._busy = busy or journal
        self._later = later or asyncio.get_running_loop().call_later
        self._clock = clock
        self._changes = RecordQuota(in_full=owner_records, write=self._told_of_busy, clock=clock, later=self._later)
        self._refusals = RecordQuota(in_full=REFUSALS_IN_FULL, write=journal.add, clock=clock, later=self._later)
        self._strangers = Buckets(per_s=STRANGERS_PER_S, burst=STRANGERS_BURST, clock=time.monotonic)
        self._untold = 0

    @contextmanager
    def __call__(self, name: str, call: Call, request: object) -> Iterator[Callable[[object], None]]:
        began, answers, told = self._clock(), list[object](), list[str]()

        def begin() -> None:
            """A call that lasts is recorded as begun, too: the server may not live to see its end."""
            told.append(BEGUN)
            self._change(call.owner, self._record(name, call, request, began, BEGUN))

        has_begun = _beginning(request)
        lasting = None if name in LOOKS and not may_stop(request) else self._later(LONG_S, begin)
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
                record = self._record(name, call, request, began, ended, **made(*answers), **also)
                if ended in REFUSALS and not question and not told and not has_begun():
                    self._refusal(record)
                else:
                    self._change(call.owner, record)

    def at_gate(self, step: str, question: Approval) -> None:
        """A call waits for a person, or has waited: a record of its own, because the server may die meanwhile."""
        self._change(
            question.owner,
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
            },
        )

    def finish(self) -> None:
        """Write down what was only counted so far."""
        self._changes.tell()
        self._refusals.tell()
        if self._untold:
            self._journal.add(
                {"time": round(self._clock(), 3), "rpc": SEVERAL, "identity": "", "not_recorded_before": self._untold}
            )
            self._untold = 0

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

    def _change(self, owner: str, record: Names) -> None:
        is_in_share = self._changes.take((owner, BUSY_NOTE, "OK"), {"owner": owner})
        (self._journal if is_in_share else self._busy).add(record)

    def _refusal(self, record: Names) -> None:
        kind = (str(record["identity"]), str(record["rpc"]), str(record["outcome"]))
        if self._refusals.take(kind, {key: record[key] for key in ("owner", "via")}):
            self._journal.add(record)

    def _told_of_busy(self, told: Names) -> None:
        """They are written, only elsewhere."""
        self._journal.add({**told, "identity": "server", "in_busy_trail": told["not_recorded"], "not_recorded": 0})

    def _record(
        self, name: str, call: Call, request: object, began: float, ended: str, **also: str | int | float | bool
    ) -> Names:
        caller = call.caller
        return {
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


def _beginning(request: object) -> Callable[[], bool]:
    """Tells whether a call has gone on from its beginning; a stream knows itself, because its beginning is waited for."""
    if isinstance(request, Stream):
        return lambda: request.has_gone_on
    gone_on: list[bool] = []
    # The loop runs this before anything that the call could wait for, and not at all while the call does not wait.
    asyncio.get_running_loop().call_soon(gone_on.append, True)
    return lambda: bool(gone_on)


def peer(presented: Presented) -> str:
    match presented.peer:
        case UnixPeer(uid):
            return f"uid:{uid}"
        case TcpPeer(source=(host, port)):
            return f"{host}:{port}"
        case _:
            return ""
