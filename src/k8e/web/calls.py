"""What one guest's clients ask: each question has a place in its identity's room, until it is answered.

In the older form it also ends when nobody waits for it any more: the library answers it whole and does not look whether
somebody is still there, and a command would run on for nobody. A client with a token can say so, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any

import anyio
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, RequestId
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from k8e.mcp.lines import Batch, Refused, encoded, error, parsed
from k8e.web.rooms import Full, Room

__all__ = ["Calls"]

Message = MutableMapping[str, Any]

DISCONNECT = "http.disconnect"
BUSY = -32000
LATER = "wait for the answers to some of them"


class Calls:
    """What one guest's clients wait for."""

    def __init__(self, manager: StreamableHTTPSessionManager, room: Room) -> None:
        self._manager = manager
        self._room = room
        self._running: dict[RequestId, anyio.CancelScope] = {}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; its question goes on whoever leaves, where the protocol's session does."""

        async def whole(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            await self._answer(parsed(body_of(first)), scope, first, receive, send)

        await self._whole(whole, scope, receive, send)

    async def answer_while_waited_for(self, scope: Scope, receive: Receive, send: Send, *, is_one_client: bool) -> None:
        """Serve one request of the older form; only where they are one client's do its numbers name its questions."""

        async def whole(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            match parsed(body_of(first)):
                case JSONRPCRequest() as request:
                    await self._answer_while_waited_for(request, scope, first, receive, send)
                case other:
                    if is_one_client and isinstance(other, JSONRPCNotification):
                        self._take_note(other)
                    await self._answer(other, scope, first, receive, send)

        await self._whole(whole, scope, receive, send)

    async def _whole(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that has come whole, in one message. Raises: HTTPException."""
        with ExitStack() as coming:

            async def come(scope: Scope, replay: Receive, send: Send) -> None:
                coming.close()
                await app(scope, replay, send)

            counted = coming.enter_context(self._room.arriving(receive))
            try:
                await RequestBodyLimitMiddleware(come, self._manager.max_request_body_size)(scope, counted, send)
            except Full:
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"too much at once: {LATER}") from None

    def _take_note(self, notification: JSONRPCNotification) -> None:
        if notification.method == "notifications/cancelled":
            request_id = cancelled_request_id_from_params(notification.params)
            if request_id in self._running:
                self._running[request_id].cancel()

    async def _answer(
        self, message: JSONRPCMessage | Batch | Refused, scope: Scope, first: Message, receive: Receive, send: Send
    ) -> None:
        """What is no question takes no place, and the library knows what to say to it."""
        if not isinstance(message, JSONRPCRequest):
            await self._manager.handle_request(scope, replayed(first, receive), send)
            return
        try:
            async with self._room.place(message, len(body_of(first))):
                await self._manager.handle_request(scope, replayed(first, receive), send)
        except Full:
            await told(error(message.id, BUSY, f"too many calls of yours: {LATER}"))(scope, receive, send)

    async def _answer_while_waited_for(
        self, request: JSONRPCRequest, scope: Scope, first: Message, receive: Receive, send: Send
    ) -> None:
        left = asyncio.Event()
        is_answered = False

        async def leaving() -> Message:
            await left.wait()
            return {"type": DISCONNECT}

        async def noting(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        with self._known(request.id) as running:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch(receive, left, running), name="caller of an MCP call")
                await self._answer(request, scope, first, leaving, noting)
                watching.cancel()
        if running.cancelled_caught and not left.is_set() and not is_answered:
            answer = error(request.id, REQUEST_CANCELLED, "cancelled, as its client wished")
            await told(answer)(scope, leaving, send)

    @contextmanager
    def _known(self, request_id: RequestId) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as running:
            self._running[request_id] = running
            try:
                yield running
            finally:
                if self._running.get(request_id) is running:
                    del self._running[request_id]


async def watch(receive: Receive, left: asyncio.Event, running: anyio.CancelScope) -> None:
    """End a call when its caller leaves."""
    while (await receive())["type"] != DISCONNECT:
        pass
    left.set()
    running.cancel()


def body_of(message: Message) -> bytes:
    body: bytes = message.get("body", b"")
    return body


def told(answer: JSONRPCError) -> Response:
    return Response(encoded(answer), media_type="application/json")


def replayed(first: Message, receive: Receive) -> Receive:
    """What has been received already, and then the rest."""
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
