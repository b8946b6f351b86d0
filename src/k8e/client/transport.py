"""One channel to one server: made at first use, errors rebuilt, safe calls repeated, nothing else."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, TypeVar

from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import keep_for_ever, open_channel
from k8e.client.discovery import Target
from k8e.client.errors import DeadlineExceeded, SandboxError, Unreachable
from k8e.client.light import calls
from k8e.client.light.calls import ERROR_KEY, PERSON_S, QUICK_S, after_loss, refusal, unreachable
from k8e.client.local.channel import NOT_CONNECTED
from k8e.client.local.reviving import Reviver
from k8e.client.retries import Patience, pause_s

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["GATED_S", "PERSON_S", "QUICK_S", "Transport", "deadline"]

GATED_S = QUICK_S + PERSON_S
"""For calls that change something small, where a gate may be in the way."""

REPEATABLE: tuple[type[Message], ...] = (
    pb.GetSessionRequest,
    pb.ListSessionsRequest,
    pb.DestroySessionRequest,
    pb.ExtendSessionRequest,
    pb.UpdateLabelsRequest,
    pb.PollRunRequest,
    pb.ListRunsRequest,
    pb.ListExecsRequest,
    pb.GetProcessesRequest,
    pb.GetEventsRequest,
    pb.GetTranscriptRequest,
    pb.ReadFileRequest,
    pb.ReadStreamRequest,
    pb.ListFilesRequest,
    pb.ListDirectoryRequest,
    pb.StatFileRequest,
    pb.MakeDirectoryRequest,
    pb.ListWorkspacesRequest,
    pb.UpdateAllowedHostsRequest,
    pb.SetSecretRequest,
    pb.ListSecretsRequest,
    pb.TerminalResizeRequest,
    pb.TerminalForegroundRequest,
    pb.TerminalStreamRequest,
    pb.ListEgressRequest,
    pb.PullImageRequest,
    pb.ListApprovalsRequest,
    pb.ListApiKeysRequest,
    pb.WhoAmIRequest,
    pb.ServerStatusRequest,
)
"""What may be asked twice: it only looks, or its second time changes nothing more."""

_SIGKILL = 9


def is_repeatable(request: Message) -> bool:
    """A command with a name of its own runs once, however often it is asked for, and what was killed stays killed."""
    if isinstance(request, pb.ExecRequest):
        return bool(request.exec_id)
    if isinstance(request, pb.SignalExecRequest | pb.KillRunRequest):
        return request.signal in (0, _SIGKILL)
    return isinstance(request, REPEATABLE)


Q = TypeVar("Q", bound="Message")
R = TypeVar("R", bound="Message")


def deadline(timeout_s: float) -> float | None:
    """How long to wait for a command that may take `timeout_s`, and perhaps waits for a person before.

    The server ends the command in its time. This is for a server that says nothing; without a limit for one without.
    """
    limit_s = calls.deadline(timeout_s)
    return None if limit_s is None else limit_s + PERSON_S


class Transport:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._channel: aio.Channel | None = None
        self._made_stub: SandboxStub | None = None
        self._pid = os.getpid()
        self._was_answered = False
        self._reviver = Reviver(target.socket) if target.socket else None

    @property
    def _stub(self) -> SandboxStub:
        if self._pid != os.getpid():
            self._forked()
        if self._made_stub is None:
            self._channel = open_channel(self._target)
            self._made_stub = SandboxStub(self._channel)
        return self._made_stub

    def _forked(self) -> None:
        """A channel lives in the process that made it: a child begins with none, and leaves its parent's alone."""
        self._pid = os.getpid()
        keep_for_ever(self._channel, self._made_stub)
        self._channel, self._made_stub = None, None

    async def aclose(self) -> None:
        """Close the connection; calls that still run are cancelled."""
        if self._pid != os.getpid():
            self._forked()
        channel, self._channel, self._made_stub = self._channel, None, None
        if channel is not None:
            await channel.close()

    async def _call(self, method: aio.UnaryUnaryMultiCallable[Q, R], request: Q, *, timeout_s: float | None) -> R:
        patience = Patience()
        attempt = 0
        lost: Unreachable | None = None
        while True:
            try:
                answer = await method(request, timeout=timeout_s)
            except aio.AioRpcError as status:
                error = self._rebuilt(status)
                if lost is not None and isinstance(request, pb.ExecRequest):
                    error = after_loss(lost, error)
                pause = self._pause_s(error, attempt, patience, repeatable=is_repeatable(request))
                if pause is None:
                    raise error from status
                if isinstance(error, Unreachable) and error.was_sent:
                    lost = lost or error
            else:
                self._was_answered = True
                return answer
            await self._pause(pause)
            attempt += 1

    def _pause_s(self, error: SandboxError, attempt: int, patience: Patience, *, repeatable: bool) -> float | None:
        """How long to wait before a call is repeated; None where the error is the answer."""
        # A server that took a call is one, and is waited for.
        self._was_answered = self._was_answered or (isinstance(error, Unreachable) and error.was_sent)
        return pause_s(
            error,
            attempt=attempt,
            waited_s=patience.used_s(),
            chance=random.random(),  # noqa: S311 - it only spreads clients out
            repeatable=repeatable,
            was_answered=self._was_answered,
        )

    async def _pause(self, seconds: float) -> None:
        if self._reviver is not None:
            self._reviver.revive()
        await asyncio.sleep(seconds)

    async def _pages(self, method: aio.UnaryUnaryMultiCallable[Q, R], request: Q) -> AsyncIterator[R]:
        """The answers of a list that may take several; the server says where each goes on."""
        while True:
            answer = await self._call(method, request, timeout_s=QUICK_S)
            yield answer
            request.page_token = answer.next_page_token  # type: ignore[attr-defined]  # every list has these two
            if not answer.next_page_token:  # type: ignore[attr-defined]
                return

    async def _streamed(self, method: aio.UnaryStreamMultiCallable[Q, R], request: Q) -> AsyncIterator[R]:
        """The messages that answer one request; asked again, by the rules of `_call`, until the first of them came."""
        patience = Patience()
        attempt = 0
        has_begun = False
        while True:
            try:
                async for message in self._each(method(request)):
                    has_begun = True
                    yield message
            except Unreachable as error:
                pause = self._pause_s(error, attempt, patience, repeatable=is_repeatable(request))
                if has_begun or pause is None:
                    raise
            else:
                return
            await self._pause(pause)
            attempt += 1

    async def _each(self, call: aio.UnaryStreamCall[Q, R] | aio.StreamStreamCall[Q, R]) -> AsyncIterator[R]:
        """The messages of a stream; leaving the loop early cancels the call, and with it the command."""
        try:
            async for message in call:
                self._was_answered = True
                yield message
        except aio.AioRpcError as error:
            raise self._rebuilt(error) from error
        finally:
            call.cancel()

    def _rebuilt(self, error: aio.AioRpcError) -> SandboxError:
        trailing = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
        details = error.details() or ""
        made = refusal(error.code().name, details, trailing)
        if type(made) is DeadlineExceeded and ERROR_KEY not in trailing:
            return DeadlineExceeded(
                f"no answer from {self._target.socket or self._target.endpoint} in time: {details}. {made.remedy}"
            )
        if type(made) is not Unreachable:
            return made
        was_sent = not details.startswith(NOT_CONNECTED)
        return unreachable(self._target.described(), details, self._target.tried, was_sent=was_sent)
