"""The fields of a JSON value beside those of its message, where protobuf's own parser is too forgiving.

It takes a list for an empty message and drops what is no base64, so that program text where bytes are wanted would
run as something else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from k8e.errors import InvalidSpec

__all__ = ["refuse_strangers"]

NAME_CHARS = 64

# Both alphabets, with or without the padding, as protobuf has it.
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*+={0,2}")


def refuse_strangers(kind: Any, value: object, *, place: str = "") -> None:
    """Every name must be one of the message's, and bytes must be base64. Raises: InvalidSpec naming the field."""
    if not isinstance(value, dict):
        raise InvalidSpec(f"must be an object with the fields of {kind.name}", field=place.removesuffix("."))
    for name, each in value.items():
        field = named_fields(kind).get(name)
        if field is None:
            raise InvalidSpec(f"{kind.name} has no such field", field=f"{place}{shown(name)}")
        if each is not None:
            _look_inside(field, each, f"{place}{field.name}")


@functools.cache
def named_fields(kind: Any) -> Mapping[str, Any]:
    """Both spellings of every field. A table of ours: protobuf's own break on names that are no text."""
    return {name: field for field in kind.fields for name in (field.name, field.json_name)}


def _look_inside(field: Any, value: object, place: str) -> None:
    """One field's value, or each of its values; what is no list or map here is the parser's to refuse."""
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        values = [(f"{place}[{shown(key)}]", each) for key, each in value.items()] if isinstance(value, dict) else []
    else:
        inner = field
        values = [(place, each) for each in value] if isinstance(value, list) else [(place, value)]
    for where, each in values:
        if inner.type == FieldDescriptor.TYPE_MESSAGE:
            refuse_strangers(inner.message_type, each, place=f"{where}.")
        elif inner.type == FieldDescriptor.TYPE_BYTES and isinstance(each, str) and not _BASE64.fullmatch(each):
            raise InvalidSpec("is bytes: send them as base64", field=where)


def shown(name: str) -> str:
    """A name as the caller wrote it, as far as it can be printed."""
    return "".join(each if each.isprintable() else "?" for each in name[:NAME_CHARS])
