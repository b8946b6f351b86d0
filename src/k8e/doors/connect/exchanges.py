"""One exchange in ASGI's terms: the request's body in, the answer out, a slow end slowing the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from k8e.byte_budget import ByteReservation
from k8e.doors.connect.envelopes import Envelopes
from k8e.doors.connect.errors import Failure
from k8e.doors.service.call import too_much_memory
from k8e.doors.service.encoding import Piece
from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.errors import Exhausted, InvalidSpec

__all__ = ["Answer", "Body", "Receive", "Scope", "Send", "headers_of"]

PIECE_BYTES = 256 * 1024
"""What is written at once, and so can wait for a slow caller beside the answer itself."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case names; one that comes twice is one with a comma, as HTTP has it."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class Body:
    """What the caller sends. Reads on only when asked, so a fast sender waits in its own socket."""

    def __init__(self, receive: Receive, reservation: ByteReservation) -> None:
        self._receive = receive
        self.reservation = reservation
        self._is_over = False
        self._envelopes = Envelopes()

    async def whole(self) -> bytes:
        """All of it. Raises: Exhausted when it is too long."""
        gathered = bytearray()
        while piece := await self._piece():
            gathered += piece
            if len(gathered) > MESSAGE_BYTES:
                raise Exhausted(f"a message is at most {MESSAGE_BYTES} bytes; use a stream for more")
            self._hold(len(gathered))
        return bytes(gathered)

    async def message(self) -> bytes | None:
        """The next enveloped message, or None at the end. Raises: InvalidSpec, Exhausted, HostUnsupported."""
        while (message := self._envelopes.take()) is None:
            piece = await self._piece()
            if not piece:
                self._envelopes.finish()
                return None
            self._envelopes.feed(piece)
            self._hold(len(self._envelopes))
        return message

    async def only_message(self) -> bytes:
        """The one message of a caller that does not stream. Raises: as `message`."""
        message = await self.message()
        if message is None or await self.message() is not None:
            raise InvalidSpec("send exactly one message")
        return message

    def _hold(self, count: int) -> None:
        if not self.reservation.resize(count):
            raise too_much_memory()

    async def _piece(self) -> bytes:
        """The next bytes; none at the end."""
        while not self._is_over:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise asyncio.CancelledError
            self._is_over = not event["more_body"]
            if event["body"]:
                return bytes(event["body"])
        return b""


class Answer:
    """What the caller gets; `write` waits while it is slow to read."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def whole(self, status: int, headers: Iterable[tuple[str, str]], body: Sequence[Piece]) -> None:
        """An answer in one; a single short piece goes out with its head."""
        await self.begin(status, [*headers, ("content-length", str(sum(map(len, body))))])
        rest = bytearray()
        for piece in body:
            for at in range(0, len(piece), PIECE_BYTES):
                rest += memoryview(piece)[at : at + PIECE_BYTES]
                if len(rest) >= PIECE_BYTES:
                    await self.write(bytes(rest))
                    rest.clear()
        await self.end(bytes(rest))

    async def fail(self, failure: Failure) -> None:
        head = [("content-type", "application/json"), *failure.metadata]
        await self.whole(failure.status, head, [failure.body()])

    async def open(self, content_type: str) -> None:
        """Begin an answer in pieces, once."""
        if not self._is_open:
            self._is_open = True
            await self.begin(200, [("content-type", content_type)])

    async def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        pairs = [(name.encode(), header_value(value)) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def header_value(text: str) -> bytes:
    """What is not printable ASCII is shown as missing: it could end the header."""
    return "".join(each if " " <= each <= "~" else "?" for each in text).encode()
