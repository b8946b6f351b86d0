"""The older form's stream: a token, then every answer that the token's client is given, and a sign of life between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Send

from k8e.web.echoes import ANSWER_BYTES
from k8e.web.guests import Guest

__all__ = ["mirrored", "stream"]

PING_S = 15.0

HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


def stream(guest: Guest, *, ping_s: float = PING_S) -> StreamingResponse:
    """What the client hears from here on."""
    return StreamingResponse(events(guest, ping_s), media_type="text/event-stream", headers=HEADERS)


async def events(guest: Guest, ping_s: float) -> AsyncIterator[bytes]:
    yield event("session", guest.token.encode())
    while not guest.is_ended.is_set():
        try:
            async with asyncio.timeout(ping_s):
                answer = await guest.echoes.next()
        except TimeoutError:
            yield b": ping\n\n"
        else:
            if answer:
                yield event("message", answer)


def event(name: str, data: bytes) -> bytes:
    """JSON has its newlines escaped, so one line is enough."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def mirrored(guest: Guest, send: Send) -> Send:
    """Sends an answer, and puts it on the client's stream, too, where there is room for it."""
    body = bytearray()
    is_answer = False

    async def both(message: MutableMapping[str, Any]) -> None:
        nonlocal is_answer
        if message["type"] == "http.response.start":
            is_answer = message["status"] == HTTPStatus.OK
        elif is_answer:
            part = message.get("body", b"")
            is_answer = len(body) + len(part) <= ANSWER_BYTES
            if is_answer:
                body.extend(part)
            else:
                body.clear()
            if is_answer and not message.get("more_body"):
                guest.echoes.add(bytes(body))
        await send(message)

    return both
