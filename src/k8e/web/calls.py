"""The questions of clients without a session: each ends with its answer, or when nobody waits for it any more.

The library answers them whole and does not look whether somebody is still there; a command would run on for nobody.
A client with a token can also say that it does not want an answer any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import anyio
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp_types import JSONRPCNotification, JSONRPCRequest, RequestId
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from k8e.mcp.lines import encoded, error, parsed

__all__ = ["Calls"]

Message = MutableMapping[str, Any]

DISCONNECT = "http.disconnect"


class Calls:
    """What one guest's clients wait for."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        self._running: dict[RequestId, anyio.CancelScope] = {}

    async def answer(self, scope: Scope, receive: Receive, send: Send, *, is_one_client: bool) -> None:
        """Serve one request; only where they are one client's do its numbers name its questions."""

        async def whole(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            match parsed(first.get("body", b"")):
                case JSONRPCRequest(id=request_id):
                    await self._answer_while_waited_for(request_id, scope, first, receive, send)
                    return
                case JSONRPCNotification(method="notifications/cancelled", params=params) if is_one_client:
                    self._cancel(cancelled_request_id_from_params(params))
            await self._manager.handle_request(scope, replayed(first, receive), send)

        await RequestBodyLimitMiddleware(whole, self._manager.max_request_body_size)(scope, receive, send)

    def _cancel(self, request_id: RequestId | None) -> None:
        if request_id in self._running:
            self._running[request_id].cancel()

    async def _answer_while_waited_for(
        self, request_id: RequestId, scope: Scope, first: Message, receive: Receive, send: Send
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

        with self._known(request_id) as running:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch(receive, left, running), name="caller of an MCP call")
                await self._manager.handle_request(scope, replayed(first, leaving), noting)
                watching.cancel()
        if running.cancelled_caught and not left.is_set() and not is_answered:
            answer = error(request_id, REQUEST_CANCELLED, "cancelled, as its client wished")
            await Response(encoded(answer), media_type="application/json")(scope, leaving, send)

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


def replayed(first: Message, receive: Receive) -> Receive:
    """What has been received already, and then the rest."""
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received
