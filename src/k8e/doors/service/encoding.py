"""Answers to bytes: small ones at once, large ones in pieces and off the event loop.

The interpreter runs one thread at a time, so a thread alone does not help others: no single step may be long. A long
field is therefore never in a protobuf message, which would copy it whole several times. It is kept beside the message
and encoded slice by slice, up to what one message may hold. One large answer is encoded at a time, and owners take turns.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import functools
import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from k8e.byte_budget import ByteReservation
from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.errors import Exhausted, InvalidSpec

__all__ = [
    "CONTENT_BYTES",
    "JSON",
    "LARGE_BYTES",
    "PROTO",
    "Encoding",
    "FairWorker",
    "LargeAnswer",
    "Piece",
    "encoded",
    "encoded_whole",
    "in_one",
    "in_pieces",
    "joined",
    "text",
]

CONTENT_BYTES = MESSAGE_BYTES - 256 * 1024
"""Of a message, for its long fields; the rest is for all that stands beside them."""
LARGE_BYTES = 256 * 1024
"""From here on a field is long; up to here encoding takes less than a millisecond."""
MANY = 256
"""From here on a list is long."""
SLICE_BYTES = 192 * 1024
"""A multiple of three, so that slices of base64 can be put together."""

LENGTH_DELIMITED = 2
"""Protobuf's wire type of text and bytes: their length, then as many bytes."""

Piece = bytes | memoryview
T = TypeVar("T")


@dataclass(slots=True)
class LargeAnswer:
    """An answer whose long fields stand beside it."""

    message: Message
    contents: Mapping[str, Iterable[Piece]]
    """By field, the most important first: bytes as they are, text as UTF-8. What was captured is a `memoryview`."""
    can_be_cut: bool = True
    """Whether the message has a field `truncated`; else one that does not fit is refused."""


class FairWorker:
    """One thread for large work. Jobs of one owner run in order; owners take turns."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "k8e-encode")
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_busy = False

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Do it when it is the owner's turn. A caller that leaves while it is under way leaves it to end by itself."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._give_turn()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._is_over()
            raise
        job = loop.run_in_executor(self._thread, work)
        job.add_done_callback(self._is_over)
        return await asyncio.shield(job)

    def _give_turn(self) -> None:
        while self._waiting and not self._is_busy:
            owner = next(iter(self._waiting))
            turns = self._waiting.pop(owner)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                self._is_busy = True
                turn.set_result(None)

    def _is_over(self, job: asyncio.Future[T] | None = None) -> None:
        if job is not None and not job.cancelled():
            job.exception()  # whoever waits for it hears of it; where nobody does any more it is nobody's
        self._is_busy = False
        self._give_turn()


class Encoding(Protocol):
    """One of the two forms of a message."""

    def message(self, message: Message) -> bytes: ...

    def field(self, name: str, number: int, slices: list[Piece]) -> list[Piece]:
        """A long field, from slices that `slice` has encoded."""
        ...

    def slice(self, piece: memoryview, *, is_text: bool) -> Piece: ...

    def whole(self, message: Message, fields: list[list[Piece]], names: Iterable[str]) -> list[Piece]: ...


class Proto:
    def message(self, message: Message) -> bytes:
        return message.SerializeToString()

    def slice(self, piece: memoryview, *, is_text: bool) -> Piece:
        return piece

    def field(self, name: str, number: int, slices: list[Piece]) -> list[Piece]:
        return [_varint(number << 3 | LENGTH_DELIMITED) + _varint(sum(map(len, slices))), *slices]

    def whole(self, message: Message, fields: list[list[Piece]], names: Iterable[str]) -> list[Piece]:
        # A message's fields may come in any order, so parts of it one after the other are the message.
        return [self.message(message), *(piece for field in fields for piece in field)]


class Json:
    """By protobuf's own mapping, with the schema's names for fields."""

    def message(self, message: Message) -> bytes:
        return b"".join(_json_object(_shown(message)))

    def slice(self, piece: memoryview, *, is_text: bool) -> Piece:
        if is_text:
            return json.dumps(str(piece, "utf-8"), ensure_ascii=False)[1:-1].encode()
        return base64.b64encode(piece)

    def field(self, name: str, number: int, slices: list[Piece]) -> list[Piece]:
        return [b'"%s":"' % name.encode(), *slices, b'"']

    def whole(self, message: Message, fields: list[list[Piece]], names: Iterable[str]) -> list[Piece]:
        beside = _shown(message)
        for name in names:
            beside.pop(name, None)
        pieces: list[Piece] = [b"{"]
        for field in fields:
            pieces += [*field, b","]
        if beside:
            pieces += [b"".join(_json_object(beside))[1:-1], b","]
        return [*pieces[:-1], b"}"]


PROTO: Encoding = Proto()
JSON: Encoding = Json()


async def encoded_whole(
    answer: Message | LargeAnswer, encoding: Encoding, *, worker: FairWorker, owner: str, reservation: ByteReservation
) -> bytes:
    """The answer in one piece. Raises: as `encoded`."""
    if isinstance(answer, LargeAnswer):
        return await worker.run(owner, functools.partial(in_one, answer, encoding, reservation))
    (whole,) = await encoded(answer, encoding, worker=worker, owner=owner, reservation=reservation)
    return bytes(whole)


async def encoded(
    answer: Message | LargeAnswer, encoding: Encoding, *, worker: FairWorker, owner: str, reservation: ByteReservation
) -> list[Piece]:
    """The answer as it is sent. Raises: Exhausted when it is larger than it may be and cannot be cut."""
    if isinstance(answer, LargeAnswer):
        return await worker.run(owner, functools.partial(in_pieces, answer, encoding, reservation))
    if is_long(answer):
        whole = await worker.run(owner, functools.partial(encoding.message, answer))
    else:
        whole = encoding.message(answer)
    if len(whole) > LARGE_BYTES and not reservation.grow(len(whole)):
        raise Exhausted(f"it was done, but its answer of {len(whole)} bytes is more than you may hold now")
    return [whole]


def is_long(message: Message) -> bool:
    """Whether there is a long list or a long text in it, or much of anything."""
    return message.ByteSize() > LARGE_BYTES or any(
        len(value) > (LARGE_BYTES if isinstance(value, str | bytes) else MANY)
        for _, value in message.ListFields()
        if hasattr(value, "__len__")
    )


def in_pieces(
    answer: LargeAnswer, encoding: Encoding, reservation: ByteReservation, *, to_join: bool = False
) -> list[Piece]:
    """The encoded message. Blocking, and long, but never for long at a stretch.

    What is captured is counted already, unless it is `to_join` and so will be there twice.
    Raises: InvalidSpec or Exhausted when it does not fit and cannot be cut.
    """
    room, is_cut = CONTENT_BYTES, False
    fields: list[list[Piece]] = []
    for name, pieces in answer.contents.items():
        field = answer.message.DESCRIPTOR.fields_by_name[name]
        is_text = field.type == FieldDescriptor.TYPE_STRING
        # A text beside its exact bytes is only another view of them.
        is_view = is_text and f"{name}_bytes" in answer.contents
        taken: list[Piece] = []
        for part, is_captured in _slices(pieces, is_text=is_text):
            piece = encoding.slice(part, is_text=is_text)
            is_counted = is_captured and piece is part and not to_join
            has_room = len(piece) <= room
            if not has_room or not (is_counted or reservation.grow(len(piece))):
                if not (answer.can_be_cut or is_view):
                    raise _too_large(has_room=has_room)
                is_cut = is_cut or not is_view
                break
            room -= len(piece)
            taken.append(piece)
        fields.append(encoding.field(name, field.number, taken))
    if is_cut:
        answer.message.truncated = True  # type: ignore[attr-defined]  # every one that can be cut has it
    return encoding.whole(answer.message, fields, answer.contents)


def _too_large(*, has_room: bool) -> InvalidSpec | Exhausted:
    if has_room:
        return Exhausted("your calls hold too much memory: use a stream, or wait for those that run")
    return InvalidSpec(f"the answer is larger than one message of {MESSAGE_BYTES} bytes: use a stream")


def in_one(answer: LargeAnswer, encoding: Encoding, reservation: ByteReservation) -> bytes:
    """The same in one piece."""
    return joined(in_pieces(answer, encoding, reservation, to_join=True))


def joined(pieces: list[Piece]) -> bytes:
    """One piece of all, copied step by step."""
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        return pieces[0]
    whole = io.BytesIO()
    for piece in pieces:
        for start in range(0, len(piece), SLICE_BYTES):
            whole.write(memoryview(piece)[start : start + SLICE_BYTES])
    return whole.getvalue()


def text(name: str, data: bytes) -> dict[str, Iterable[Piece]]:
    """For a pair of fields: the text, and the exact bytes only where the text had to replace some."""
    if _is_utf8(data):
        return {name: (memoryview(data),)}
    return {f"{name}_bytes": (memoryview(data),), name: _Replaced(data)}


@dataclass(frozen=True, slots=True)
class _Replaced:
    """Bytes as text, made anew whenever it is asked for and only as far as somebody reads."""

    data: bytes

    def __iter__(self) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for start in range(0, len(self.data), SLICE_BYTES):
            end = start + SLICE_BYTES
            yield decoder.decode(self.data[start:end], end >= len(self.data)).encode()


def _is_utf8(data: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        for start in range(0, len(data), SLICE_BYTES):
            decoder.decode(data[start : start + SLICE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _slices(pieces: Iterable[Piece], *, is_text: bool) -> Iterator[tuple[memoryview, bool]]:
    """Short ones, and of text whole characters; with each whether it is of what was captured."""
    for piece in pieces:
        view, start = memoryview(piece), 0
        while start < len(view):
            end = min(start + SLICE_BYTES, len(view))
            while is_text and end < len(view) and view[end] & 0xC0 == 0x80:  # the middle of a character
                end -= 1
            yield view[start:end], isinstance(piece, memoryview)
            start = end


def _varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits to a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _shown(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _json_object(members: Mapping[str, Any]) -> Iterator[bytes]:
    """The text of an object, item by item where a list is long."""
    yield b"{"
    for number, (name, value) in enumerate(members.items()):
        yield b',"%s":' % name.encode() if number else b'"%s":' % name.encode()
        if isinstance(value, list) and len(value) > MANY:
            yield b"["
            for place, item in enumerate(value):
                yield (b"," if place else b"") + _json(item)
            yield b"]"
        else:
            yield _json(value)
    yield b"}"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
