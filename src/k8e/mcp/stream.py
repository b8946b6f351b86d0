"""One client's lines through the library's server loop, which speaks both eras of the protocol.

The end of the input lets calls finish and their answers be written; only then the loop is told of it. A cut is a
cancellation and ends them. A slow reader slows whoever answers it. What waits for an answer is bounded, by count and
by size, and so is memory; what goes beyond is refused in words of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from k8e.mcp.admission import Admission
from k8e.mcp.lines import Batch, Refused, encoded, error, parsed

__all__ = ["serve"]

BUSY = -32000
QUEUED = 64
"""Messages on their way to the loop."""
WITH_BATCHES = frozenset({"2024-11-05", "2025-03-26"})

Write = Callable[[bytes], Awaitable[None]]
Answer = JSONRPCResponse | JSONRPCError


async def serve(
    server: Server[Any], lines: AsyncIterator[bytes], write: Write, *, leaving: asyncio.Event | None = None
) -> bool:
    """Serve until the lines end, or until we leave and nothing is being done; True where it was the client's end."""
    conversation = Conversation(server, write)
    return await conversation.run(lines, leaving or asyncio.Event())


@dataclass(slots=True)
class Together:
    """The requests of one batch that are not answered yet, and the answers so far."""

    waiting: set[RequestId]
    answers: list[Answer] = field(default_factory=list)


class Conversation:
    def __init__(self, server: Server[Any], write: Write) -> None:
        self._server = server
        self._write = write
        self._in, self._incoming = anyio.create_memory_object_stream[SessionMessage | Exception](QUEUED)
        self._outgoing, self._out = anyio.create_memory_object_stream[SessionMessage](0)
        self._admission = Admission()
        self._batches: dict[RequestId, Together] = {}
        self._asked: set[RequestId | None] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_over = False
        self._revision = ""
        self._writing = asyncio.Lock()

    async def run(self, lines: AsyncIterator[bytes], leaving: asyncio.Event) -> bool:
        with self._in, self._incoming, self._outgoing, self._out:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(lines), name="lines of an MCP client")
                going = group.create_task(self._leave(leaving, reading), name="leave an MCP client")
                group.create_task(self._pass_on(), name="answers to an MCP client")
                options = self._server.create_initialization_options()
                await self._server.run(self._incoming, self._outgoing, options)
                reading.cancel()
                going.cancel()
        return not leaving.is_set()

    async def _read(self, lines: AsyncIterator[bytes]) -> None:
        async for line in lines:
            if line.strip():
                await self._take(line)
        await self._finish()

    async def _leave(self, leaving: asyncio.Event, reading: asyncio.Task[None]) -> None:
        await leaving.wait()
        reading.cancel()
        await self._finish()

    async def _finish(self) -> None:
        """What is asked of the client now nobody will answer; what it asked is answered, and then the loop may end."""
        self._is_over = True
        for request_id in tuple(self._asked):
            if request_id is not None:
                await self._answer_for_client(request_id)
        await self._idle.wait()
        self._in.close()

    async def _take(self, line: bytes) -> None:
        match parsed(line):
            case Refused(answer):
                await self._say(encoded(answer))
            case Batch(items):
                await self._take_batch(items, len(line))
            case message:
                await self._take_message(message, len(line))

    async def _take_message(self, message: JSONRPCMessage, size: int) -> None:
        match message:
            case JSONRPCRequest():
                if refusal := self._refusal(message, size):
                    await self._say(encoded(refusal))
                elif self._is_admitted(message, size):
                    await self._start(message)
            case JSONRPCNotification(method="notifications/cancelled"):
                await self._cancel(message)
            case JSONRPCResponse(id=request_id) | JSONRPCError(id=request_id):
                self._asked.discard(request_id)
                await self._in.send(SessionMessage(message))
            case _:
                await self._in.send(SessionMessage(message))

    async def _cancel(self, message: JSONRPCNotification) -> None:
        request_id = cancelled_request_id_from_params(message.params)
        if request_id is not None and self._admission.forget(request_id):
            await self._settle(request_id, None)
        else:
            await self._in.send(SessionMessage(message))

    async def _take_batch(self, items: Sequence[JSONRPCMessage | Refused], size: int) -> None:
        if self._revision not in WITH_BATCHES:
            text = "this revision of the protocol has no batches: send one message per line"
            await self._say(encoded(error(None, INVALID_REQUEST, text)))
            return
        together = Together(set())
        now: list[JSONRPCMessage] = []
        # All of it is counted before any of it can be answered, and each before the next is judged.
        for item in items:
            match item:
                case Refused(answer):
                    together.answers.append(answer)
                case JSONRPCRequest() if refusal := self._refusal(item, size // len(items)):
                    together.answers.append(refusal)
                case JSONRPCRequest():
                    together.waiting.add(item.id)
                    self._batches[item.id] = together
                    now += [item] if self._is_admitted(item, size // len(items)) else []
                case message:
                    now.append(message)
        for each in now:
            await (self._start(each) if isinstance(each, JSONRPCRequest) else self._take_message(each, size))
        await self._end_batch(together)

    def _refusal(self, request: JSONRPCRequest, size: int) -> JSONRPCError | None:
        if self._admission.knows(request.id):
            return self._used_twice(request)
        if self._admission.is_busy(request, size):
            return error(request.id, BUSY, "too many calls wait for their answers: wait for some of them")
        return None

    def _used_twice(self, request: JSONRPCRequest) -> JSONRPCError:
        text = f"a request with the id {request.id!r} is not answered yet: use every id once"
        return error(None, INVALID_REQUEST, text)

    def _is_admitted(self, request: JSONRPCRequest, size: int) -> bool:
        """Count a request; whether it may run now."""
        self._idle.clear()
        return self._admission.begin(request, size)

    async def _start(self, request: JSONRPCRequest) -> None:
        async def unanswered() -> None:
            await self._settle(request.id, None)

        await self._in.send(SessionMessage(request, ServerMessageMetadata(on_request_unanswered=unanswered)))

    async def _pass_on(self) -> None:
        async for item in self._out:
            message = item.message
            if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                self._learn(message)
                await self._settle(message.id, message)
            elif isinstance(message, JSONRPCRequest) and self._is_over:
                await self._answer_for_client(message.id)
            else:
                if isinstance(message, JSONRPCRequest):
                    self._asked.add(message.id)
                await self._say(encoded(message))

    async def _settle(self, request_id: RequestId, answer: Answer | None) -> None:
        """A request is done with: answered, or cancelled by whoever asked."""
        # Before the answer is sent: whoever has it may use its id again at once.
        following = list(self._admission.end(request_id))
        together = self._batches.pop(request_id, None)
        if together is not None:
            together.waiting.discard(request_id)
            together.answers += [answer] if answer is not None else []
            await self._end_batch(together)
        elif answer is not None:
            await self._say(encoded(answer))
        for request in following:
            await self._start(request)
        if self._admission.is_idle:
            self._idle.set()

    async def _end_batch(self, together: Together) -> None:
        if not together.waiting and together.answers:
            answers, together.answers = together.answers, []
            await self._say(b"[" + b",".join(map(encoded, answers)) + b"]")

    async def _answer_for_client(self, request_id: RequestId) -> None:
        """In place of a client whose input has ended: there will be no answer."""
        self._asked.discard(request_id)
        answer = error(request_id, CONNECTION_CLOSED, "the client's input has ended")
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._in.send(SessionMessage(answer))

    def _learn(self, answer: Answer) -> None:
        """The revision that the two have agreed on, which only the answer to `initialize` says."""
        if isinstance(answer, JSONRPCResponse):
            self._revision = str(answer.result.get("protocolVersion") or self._revision)

    async def _say(self, line: bytes) -> None:
        async with self._writing:
            await self._write(line)
