"""The edge of the service: who is calling, what it may ask for, and what is done around every call.

Both doors come through here, so a call is admitted, limited, recorded and counted alike whichever protocol carries it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from k8e.byte_budget import ByteBudget, ByteReservation
from k8e.doors.service.call import Call
from k8e.doors.service.encoding import LARGE_BYTES, PROTO, Encoding, LargeAnswer, Piece, encoded, encoded_whole
from k8e.doors.service.service import SERVICE, Service
from k8e.errors import Denied, K8eError
from k8e.identity.callers import Caller, Role
from k8e.identity.doorkeeper import Admitted, Doorkeeper
from k8e.identity.presented import Presented

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Edge", "Refusal", "Step", "Stream"]

FOR_ADMINISTRATORS = frozenset({"StopServer", "CreateApiKey", "ListApiKeys", "DeleteApiKey"})
FOR_APPROVERS = frozenset({"ListApprovals", "ApproveAction", "WhoAmI", "ServerStatus", "Login"})
STREAMING = frozenset(method.name for method in SERVICE.methods if method.client_streaming)

M = TypeVar("M")
Hear = Callable[[object], None]
Step = Callable[[str, Call, object], AbstractContextManager[Hear | None]]
"""One thing done around every call: name, call, request → entered before it, left after it with its error.

What it is entered with hears the answer, where there is one.
"""
Refusal = Callable[[str, Presented, K8eError], None]
"""Told of a call that was refused before anybody knew whose it is."""


class Stream:
    """The messages of a caller that streams; the first one, which names the objects, can be looked at afterwards."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self.first: Any | None = None
        self.has_gone_on = False
        """Whether, since the first message, the next was asked for or anything else was waited for."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self.first is not None:
            self._go_on()
            return await anext(self._messages)
        self.first = await anext(self._messages)
        # The loop runs this before anything that the call could wait for.
        asyncio.get_running_loop().call_soon(self._go_on)
        return self.first

    def _go_on(self) -> None:
        self.has_gone_on = True


class Edge:
    """Steps are entered in the order given and left in reverse; the role is checked inside all of them, so that they
    see what was denied."""

    def __init__(
        self,
        service: Service,
        doorkeeper: Doorkeeper,
        *,
        steps: Sequence[Step] = (),
        refusals: Sequence[Refusal] = (),
        answers: ByteBudget | None = None,
        requests: ByteBudget | None = None,
    ) -> None:
        self._answers = answers or ByteBudget()
        self._requests = requests or ByteBudget()
        self._service = service
        self._doorkeeper = doorkeeper
        self._steps = tuple(steps)
        self._refusals = tuple(refusals)

    def admit(self, name: str, presented: Presented) -> Admitted:
        """Who is calling, and for whom. Raises: Unauthenticated, Denied."""
        try:
            return self._doorkeeper.admit(presented)
        except K8eError as error:
            for tell in self._refusals:
                tell(name, presented, error)
            raise

    async def answer(self, name: str, call: Call, request: Any) -> Any:
        """Serve one call of an admitted caller. Raises: K8eError."""
        if name in STREAMING:
            request = Stream(request)
        with ExitStack() as around:
            hearing = [around.enter_context(step(name, call, request)) for step in self._steps]
            check_role(name, call.caller)
            answer = await self._service.answer(name, call, request)
            for hear in filter(None, hearing):
                hear(answer.message if isinstance(answer, LargeAnswer) else answer)
            return answer

    def reservation(self, owner: str) -> ByteReservation:
        """What the memory of one answer is counted by, until it is sent and this is closed."""
        return self._answers.open(owner)

    def request_reservation(self, owner: str) -> ByteReservation:
        """What the memory of one request is counted by, until it is answered and this is closed."""
        return self._requests.open(owner)

    async def decoded(self, owner: str, data: bytes, decode: Callable[[bytes], M]) -> M:
        """A request; a large one is read off the event loop. Raises: InvalidSpec."""
        if len(data) <= LARGE_BYTES:
            return decode(data)
        return await self._service.worker.run(owner, functools.partial(decode, data))

    async def encoded(self, call: Call, answer: Message | LargeAnswer, encoding: Encoding) -> list[Piece]:
        """The answer as it is sent; a large one is made off the event loop. Raises: Exhausted."""
        return await encoded(
            answer, encoding, worker=self._service.worker, owner=call.owner, reservation=call.reservation
        )

    async def encoded_whole(self, call: Call, answer: Message | LargeAnswer, encoding: Encoding) -> bytes:
        """The same in one piece. Raises: Exhausted."""
        return await encoded_whole(
            answer, encoding, worker=self._service.worker, owner=call.owner, reservation=call.reservation
        )

    async def message(self, call: Call, answer: Message | LargeAnswer) -> Message:
        """The answer as one message, for callers inside the server; cut and counted as for any other."""
        if not isinstance(answer, LargeAnswer):
            return answer
        whole = await self.encoded_whole(call, answer, PROTO)
        return await self._service.worker.run(call.owner, functools.partial(type(answer.message).FromString, whole))


def check_role(name: str, caller: Caller) -> None:
    """Raises: Denied."""
    if caller.role is Role.APPROVER and name not in FOR_APPROVERS:
        raise Denied(f"{caller.identity} is an approver: it may only see and decide approvals")
    if caller.role is not Role.ADMIN and name in FOR_ADMINISTRATORS:
        raise Denied(f"{name} is only for administrators of this server")
