"""Bytes from the wire → messages; what cannot be one is refused with the name of the field that spoils it.

protobuf's own parser says only that a message is bad. Where it does, the bytes are walked once more, just far enough
to find the first field whose text is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from k8e.errors import InvalidSpec

__all__ = ["REQUEST_BYTES", "check_size", "parsed"]

M = TypeVar("M", bound=Message)

FIXED64 = 1
VARINT_BYTES = 10
REQUEST_BYTES = 4 * 1024 * 1024
"""Of a request that carries no file and no input. In such a message every two bytes can be a field, and each field costs
the parser some forty bytes and time that nobody else has."""
CARRYING_CONTENT = frozenset(
    {"WriteFileRequest", "WriteStreamRequest", "ExecInput", "TerminalWriteRequest", "McpInput"}
)
"""Messages that carry a file or input, in one long field."""
DEPTH = 8
"""No message of the service has messages inside messages deeper than this."""


def parsed(kind: type[M], data: bytes) -> M:
    """The message. Raises: InvalidSpec."""
    check_size(kind, data)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise _refusal(kind.DESCRIPTOR, data) from None


def check_size(kind: type[M], data: bytes) -> None:
    """Raises: InvalidSpec."""
    if len(data) > REQUEST_BYTES and kind.DESCRIPTOR.name not in CARRYING_CONTENT:
        raise InvalidSpec(
            f"has {len(data)} bytes; a request that carries no file may have {REQUEST_BYTES}: write the rest to a file first",
            field=kind.DESCRIPTOR.name,
        )


def _refusal(kind: Any, data: bytes) -> InvalidSpec:
    try:
        field = _not_text(kind, memoryview(data), DEPTH)
    except ValueError:
        return InvalidSpec("is cut off or not a message of this kind", field=kind.name)
    if field:
        return InvalidSpec("is not UTF-8 text", field=field)
    return InvalidSpec("is not a message of this kind", field=kind.name)


def _not_text(kind: Any, data: memoryview, depth: int) -> str:
    """The dotted name of the first text field that is no text, or nothing."""
    for number, value in _fields(data):
        field: Any = kind.fields_by_number.get(number)
        if field is None or value is None:
            continue
        if field.type == FieldDescriptor.TYPE_STRING and not _is_text(value):
            return str(field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE and depth and (inner := _not_text_in(field, value, depth - 1)):
            return inner
    return ""


def _not_text_in(field: Any, value: memoryview, depth: int) -> str:
    inner = _not_text(field.message_type, value, depth)
    # The key and the value of a map are fields that only the wire knows.
    is_map = field.message_type.GetOptions().map_entry
    return f"{field.name}.{inner}" if inner and not is_map else str(field.name) if inner else ""


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Number and, where it has a length, content of each field. Raises: ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
                yield tag >> 3, None
            case 1 | 5 as wide:
                at += 8 if wide == FIXED64 else 4
                yield tag >> 3, None
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    raise ValueError("cut off")
                yield tag >> 3, data[at : at + length]
                at += length
            case _:
                raise ValueError("unknown kind of field")
    if at > len(data):
        raise ValueError("cut off")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(VARINT_BYTES):
        if at + shift >= len(data):
            raise ValueError("cut off")
        byte = data[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("number too long")


def _is_text(value: memoryview) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
