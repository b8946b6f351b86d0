"""Requests that are wrong in exactly one field, made from the schema: every field, every kind of wrong.

They are made as bytes, because some of them are no messages: text that is not UTF-8 cannot be put into one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["Hostile", "hostile_requests"]

SHELL = "$(id)`id`;id|id&id>x'\"*?~#!"
TEXTS: Mapping[str, bytes] = {
    "empty": b"",
    "huge": b"x" * (1 << 20),
    "NUL": b"a\0b",
    "dots": b"../../../../../../etc/passwd",
    "dot": b"..",
    "shell": SHELL.encode(),
    "newline": b"a\r\nb: c",
    "option": b"--help",
    "not UTF-8": b"\xff\xfe",
    "surrogate": b"\xed\xa0\x80",
}
WHOLE: Mapping[str, int] = {
    "lowest": -(1 << 63),
    "negative": -1,
    "zero": 0,
    "highest": (1 << 63) - 1,
    "31 bits": (1 << 31) - 1,
}
BROKEN: Mapping[str, float] = {
    "negative": -1.0,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "below": float("-inf"),
    "enormous": 1e308,
    "tiny": 5e-324,
}
TEXT_TYPES = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
BROKEN_TYPES = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    field: str
    """Dotted, from the request down."""
    kind: str
    is_text: bool
    data: bytes
    in_oneof: bool
    """Its being there may take the place of another field."""

    @property
    def name(self) -> str:
        return self.field.rpartition(".")[2]


def hostile_requests(good: Message) -> Iterator[Hostile]:
    """The request with one field wrong, for each field and kind."""
    for field in good.DESCRIPTOR.fields:
        base = type(good)()
        base.CopyFrom(good)
        base.ClearField(field.name)
        rest = base.SerializeToString()
        for each in _of_field(good, field):
            yield Hostile(
                field=each.field,
                kind=each.kind,
                is_text=each.is_text,
                data=rest + each.data,
                in_oneof=each.in_oneof or _in_oneof(field),
            )


def _of_field(good: Message, field: Any) -> Iterator[Hostile]:
    """The encoded field alone, in each wrong way."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            yield from _of_map(field)
        else:
            yield from _of_message(good, field)
        return
    for kind, data, is_text in _values(field):
        yield Hostile(field=field.name, kind=kind, is_text=is_text, data=data, in_oneof=False)


def _of_message(good: Message, field: Any) -> Iterator[Hostile]:
    given = getattr(good, field.name)
    inner = given if not field.is_repeated else given[0] if given else getattr(type(good)(), field.name).add()
    for each in hostile_requests(inner):
        data = _tag(field.number, 2) + _sized(each.data)
        yield Hostile(
            field=f"{field.name}.{each.field}", kind=each.kind, is_text=each.is_text, data=data, in_oneof=each.in_oneof
        )


def _of_map(field: Any) -> Iterator[Hostile]:
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    good_key, good_value = (_tag(part.number, 2) + _sized(b"K") for part in (key, value))
    for part, other in ((key, good_value), (value, good_key)):
        for kind, data, is_text in _values(part):
            entry = _tag(field.number, 2) + _sized(data + other)
            yield Hostile(field=field.name, kind=f"{part.name} {kind}", is_text=is_text, data=entry, in_oneof=False)


def _values(field: Any) -> Iterator[tuple[str, bytes, bool]]:
    if field.type in TEXT_TYPES:
        for kind, text in TEXTS.items():
            yield kind, _tag(field.number, 2) + _sized(text), field.type == FieldDescriptor.TYPE_STRING
    elif field.type in BROKEN_TYPES:
        for kind, number in BROKEN.items():
            yield kind, _tag(field.number, 1) + struct.pack("<d", number), False
    elif field.type != FieldDescriptor.TYPE_BOOL:
        for kind, whole in WHOLE.items():
            yield kind, _tag(field.number, 0) + _varint(whole % (1 << 64)), False


def _in_oneof(field: Any) -> bool:
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
