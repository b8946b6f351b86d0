"""Calls that may come to a gate: they get the time that a person takes, and what they wait for is said meanwhile."""

from __future__ import annotations

import _thread  # `threading` costs a millisecond, which most commands would pay for nothing
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from k8e.cli.output import say
from k8e.client.errors import SandboxError
from k8e.client.light.calls import PERSON_S, QUICK_S, Answer, Calls, Duplex, Request, listed

__all__ = ["Patient"]

GATED = frozenset({
    "CreateSession", "RunSubAgent", "DeleteWorkspace", "UpdateAllowedHosts", "Exec", "ExecAttach", "PipInstall",
    "CreateTerminal", "WriteFile", "WriteStream", "MakeDirectory", "MoveFile", "RemoveFile",
})  # fmt: skip
FIRST_LOOK_S = 1.0
"""Nearly every call is over by then."""
LAST_PAUSE_S = 16.0
SLACK_S = 60
"""What the clocks of two machines may differ by: questions that are older than the call hold up something else."""


class Patient:
    """A way to the server, with patience."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        if rpc not in GATED:
            return self._calls.unary(rpc, request, timeout_s=timeout_s)
        with Watch(self._calls, session_of(request)):
            return self._calls.unary(rpc, request, timeout_s=longer(timeout_s))

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        if rpc not in GATED:
            yield from self._calls.stream(rpc, requests, timeout_s=timeout_s)
            return
        first = requests[0] if isinstance(requests, Sequence) else next(requests)
        sent = requests if isinstance(requests, Sequence) else behind(first, requests)
        with Watch(self._calls, session_of(first)) as watch:
            for answer in self._calls.stream(rpc, sent, timeout_s=longer(timeout_s)):
                watch.stop()
                yield answer

    def duplex(self, rpc: str) -> Duplex:
        return self._calls.duplex(rpc)

    def close(self) -> None:
        self._calls.close()


class Watch:
    """Looks beside a call for the question that holds it up, and says it once."""

    def __init__(self, calls: Calls, session_id: str) -> None:
        self._calls = calls
        self._session_id = session_id
        self._since = time.time() - SLACK_S
        self._over = _thread.allocate_lock()

    def __enter__(self) -> Watch:
        self._over.acquire()
        _thread.start_new_thread(self._look, ())
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._over.locked():
            self._over.release()

    def _look(self) -> None:
        pause_s, told = FIRST_LOOK_S, set[str]()
        while not self._over.acquire(timeout=pause_s):
            with contextlib.suppress(SandboxError, OSError):  # what failed now may go well the next time
                for asked in self._questions():
                    if asked.text("approval_id") not in told:
                        told.add(asked.text("approval_id"))
                        tell(asked)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _questions(self) -> list[Answer]:
        waiting = listed(self._calls, "ListApprovals", {}, "approvals")
        here = [each for each in waiting if each.text("session_id") == self._session_id]
        mine = [each for each in here if each.number("asked_at") >= self._since]
        me = self._calls.unary("WhoAmI", {}).text("identity") if mine else ""
        return [each for each in mine if each.text("asked_by") == me]


def in_short(action: str) -> str:
    """Its first line says what is to be done; whoever decides is shown the rest."""
    first, _, rest = action.partition("\n")
    return f"{first} …" if rest else first


def tell(asked: Answer) -> None:
    say(f"waits for approval {asked.text('approval_id')}: {in_short(asked.text('action'))}")
    say(f"a person allows it with:  k8e sandbox approve {asked.text('approval_id')}")


def longer(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else timeout_s + PERSON_S


def session_of(request: Request) -> str:
    """Which session a request is about; none for one that is to be made."""
    inner = request.get("start") or request.get("open") or request
    found = inner.get("session_id") or inner.get("parent_session_id") or "" if isinstance(inner, Mapping) else ""
    return str(found)


def behind(first: Request, others: Iterator[Request]) -> Iterator[Request]:
    yield first
    yield from others
