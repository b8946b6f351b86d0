"""An answer that needs no stream, without one.

The library opens a stream for every question of a session, because something might be said before the answer. Where the
answer comes first it is sent whole, as the protocol allows: clients bound the size of an event, and not of an answer.
What is said on the stream first, or nothing for as long as the stream's own sign of life, leaves it a stream.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

from starlette.types import Send

__all__ = ["whole_where_possible"]

STREAM = b"text/event-stream"
# As the library writes an event; an answer has no method, and its number stands before it.
ANSWER = re.compile(
    rb'event: message\r\ndata: (\{"jsonrpc":"2\.0","id":(?:-?\d+|"[^"\\]*"),"(?:result|error)":.*\})\r\n\r\n', re.DOTALL
)


def whole_where_possible(send: Send) -> Send:
    """Holds a stream's head back until its first event is there."""
    held: MutableMapping[str, Any] | None = None
    is_over = False

    async def sending(message: MutableMapping[str, Any]) -> None:
        nonlocal held, is_over
        if is_over:
            return
        if message["type"] == "http.response.start" and is_stream(message):
            held = message
        elif held is None:
            await send(message)
        elif found := ANSWER.fullmatch(message.get("body", b"")):
            is_over = True
            await send({**held, "headers": whole_headers(held, len(found[1]))})
            await send({"type": "http.response.body", "body": found[1]})
        else:
            head, held = held, None
            await send(head)
            await send(message)

    return sending


def is_stream(start: MutableMapping[str, Any]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(STREAM) for name, value in start["headers"])


def whole_headers(start: MutableMapping[str, Any], size: int) -> list[tuple[bytes, bytes]]:
    kept = [
        pair for pair in start["headers"] if pair[0].lower() not in {b"content-type", b"cache-control", b"connection"}
    ]
    return [*kept, (b"content-type", b"application/json"), (b"content-length", str(size).encode())]
