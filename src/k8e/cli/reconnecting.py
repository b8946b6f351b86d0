"""Commands that go on when the connection is lost: wait for the server, start it where it is ours, ask again by id.

A command that runs in a sandbox outlives its server. A call that named it gets the rest of it from the next server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from k8e.cli.output import say
from k8e.client.errors import NotFound, SandboxError, ServerFailed, Unreachable
from k8e.client.light.calls import QUICK_S, Answer, Calls, Duplex, Request, after_loss

__all__ = ["Reconnecting"]

WAIT_S = 30.0
"""For a server that somebody else starts."""
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
CHANNELS = {"OUTPUT_CHANNEL_STDERR": "stderr_offset", "2": "stderr_offset"}


class Reconnecting:
    """A way to the server that is found again when it is lost under a command."""

    def __init__(self, calls: Calls, reach_again: Callable[[], Calls]) -> None:
        self._calls = calls
        self._reach_again = reach_again

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        lost: Lost | None = None
        while True:
            try:
                return self._calls.unary(rpc, request, timeout_s=timeout_s)
            except SandboxError as error:
                if rpc != "Exec" or not request.get("exec_id"):
                    raise
                lost = self._after(lost, error)

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        if rpc != "ExecAttach" or not isinstance(requests, Sequence) or not requests[0].get("exec_id"):
            yield from self._calls.stream(rpc, requests, timeout_s=timeout_s)
            return
        again = attachment(requests[0])
        lost: Lost | None = None
        has_begun, next_call = False, (rpc, requests)
        while True:
            try:
                for answer in self._calls.stream(*next_call, timeout_s=timeout_s):
                    lost, has_begun = None, True
                    if answer.has("chunk"):
                        chunk = answer.one("chunk")
                        field = CHANNELS.get(chunk.text("channel"), "stdout_offset")
                        again[field] = chunk.number("offset") + len(chunk.data("data"))
                    yield answer
            except NotFound as error:
                if lost is not None and has_begun:
                    raise lost.explained(error) from error
                if lost is None:
                    # Of one that has begun nobody may think that it could be run again.
                    raise ServerFailed(str(error)) if has_begun else error from error
                # It had not begun when the connection was lost, as one that waits for a person has not. Asked for once
                # more: a session that is gone is not found whatever is asked.
                has_begun, next_call = True, (rpc, requests)
            except SandboxError as error:
                lost = self._after(lost, error)
                next_call = ("AttachExec", [again])
            else:
                return

    def duplex(self, rpc: str) -> Duplex:
        return self._calls.duplex(rpc)

    def close(self) -> None:
        self._calls.close()

    def _after(self, lost: Lost | None, error: SandboxError) -> Lost:
        """Return when it is time to ask again. Raises: the error, where that is the answer."""
        if not isinstance(error, Unreachable):
            raise error if lost is None else lost.explained(error)
        if lost is None:
            if not error.was_sent:
                raise error
            say("the connection to the server was lost while the command ran; waiting for the server")
            lost = Lost(error)
        lost.pause()
        try:
            calls = self._reach_again()
        except Unreachable:
            return lost
        self._calls.close()
        self._calls = calls
        return lost


class Lost:
    """A connection that was lost, and how long it has been waited for."""

    def __init__(self, error: Unreachable) -> None:
        self._error = error
        self._end = time.monotonic() + WAIT_S
        self._pause_s = FIRST_PAUSE_S

    def pause(self) -> None:
        """Raises: Unreachable once it has been waited for long enough."""
        if time.monotonic() > self._end:
            raise self._error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)

    def explained(self, error: SandboxError) -> SandboxError:
        return after_loss(self._error, error)


def attachment(first: Request) -> dict[str, object]:
    """The request for the rest of a command; leaving it ends the command, as leaving the first call would have."""
    start = first["start"]
    session_id = start["session_id"] if isinstance(start, Mapping) else ""
    return {"session_id": session_id, "exec_id": first["exec_id"], "stop": True}
