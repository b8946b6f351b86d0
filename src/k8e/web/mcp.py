"""MCP over HTTP: who asks, which client that is, and which of the library's ways serves it."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from k8e.http_visitor import Visitor
from k8e.web.gate import Gate
from k8e.web.guests import Guest, Guests, Kind
from k8e.web.mirror import PING_S, mirrored, stream
from k8e.web.routing import SESSION_HEADER, Form, form_of
from k8e.web.wholes import whole_where_possible

__all__ = ["McpEndpoint"]

BODY_S = 120.0
"""For a request to arrive."""
PLAIN_ACCEPT = b"application/json, text/event-stream"
"""What the library wants to read before it answers, whichever of the two it answers with."""


class McpEndpoint:
    """An ASGI application for one path."""

    def __init__(self, gate: Gate, guests: Guests, *, ping_s: float = PING_S) -> None:
        self._gate = gate
        self._guests = guests
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        visitor = await self._gate.admit(request)
        arriving = in_time(receive)
        match form_of(scope["method"], request.headers):
            case Form.MODERN:
                await self._serve(await self._guests.shared(visitor, Kind.MODERN), scope, arriving, send)
            case Form.KNOWN:
                await self._known(visitor, scope, arriving, send)
            case Form.OPENING:
                await self._opening(visitor, scope, arriving, send)
            case Form.STREAM:
                await self._stream(visitor, scope, receive, send)
            case Form.PLAIN:
                await self._plain(await self._guests.shared(visitor, Kind.PLAIN), scope, arriving, send)
            case Form.NONE:
                raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or POST", {"allow": "GET, POST, DELETE"})

    async def _known(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        guest = self._guests.find(Request(scope).headers[SESSION_HEADER], visitor)
        if guest is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such session: it has ended, or is somebody else's")
        if guest.kind is Kind.SESSION:
            is_question = scope["method"] == "POST"
            await self._serve(guest, scope, receive, whole_where_possible(send) if is_question else send)
            if scope["method"] == "DELETE":
                guest.end()
        elif scope["method"] == "POST":
            await self._plain(guest, scope, receive, mirrored(guest, send))
        else:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, "a token is for POST", {"allow": "POST"})

    async def _opening(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        guest = await self._guests.arrive(visitor, Kind.SESSION)

        async def noting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] < HTTPStatus.BAD_REQUEST:
                headers = {name.lower(): value for name, value in message["headers"]}
                if session_id := headers.get(SESSION_HEADER.encode()):
                    self._guests.name(guest, session_id.decode())
            await send(message)

        try:
            await self._serve(guest, scope, receive, whole_where_possible(noting))
        finally:
            if not guest.token:
                guest.end()

    async def _stream(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        guest = await self._guests.arrive(visitor, Kind.PLAIN)
        self._guests.name(guest)
        with guest.presence.here(is_stream=True):
            await stream(guest, ping_s=self._ping_s)(scope, receive, send)

    async def _plain(self, guest: Guest, scope: Scope, receive: Receive, send: Send) -> None:
        """As the library's clients would ask: without a session, and ready for either kind of answer."""
        kept = [pair for pair in scope["headers"] if pair[0] not in {b"accept", SESSION_HEADER.encode()}]
        asked = {**scope, "headers": [*kept, (b"accept", PLAIN_ACCEPT)]}
        with guest.presence.here():
            await guest.calls.answer_while_waited_for(asked, receive, send, is_one_client=bool(guest.token))

    async def _serve(self, guest: Guest, scope: Scope, receive: Receive, send: Send) -> None:
        with guest.presence.here(is_stream=scope["method"] == "GET"):
            if scope["method"] == "POST":
                await guest.calls.answer(scope, receive, send)
            else:
                await guest.manager.handle_request(scope, receive, send)


def in_time(receive: Receive) -> Receive:
    """A body that arrives in a bounded time; after it only the end of the connection can come, whenever it likes."""
    loop = asyncio.get_running_loop()
    deadline: float | None = loop.time() + BODY_S

    async def received() -> MutableMapping[str, Any]:
        nonlocal deadline
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time") from None
        if message["type"] != "http.request" or not message.get("more_body"):
            deadline = None
        return message

    return received
