"""Messages ↔ bytes: JSON by protobuf's own mapping with the schema's field names, or protobuf itself.

Nothing is ignored: a field that the schema does not have is refused by its name, so that a mistyped one is noticed.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from k8e.doors.connect import json_fields as fields
from k8e.doors.service import encoding
from k8e.doors.service.decoding import check_size, parsed
from k8e.doors.service.encoding import Encoding
from k8e.errors import InvalidSpec

__all__ = ["JSON", "PROTO", "Codec"]

M = TypeVar("M", bound=Message)

STRUCTURE_BYTES = 1024 * 1024
"""How much of a JSON text may lie outside of its strings: each byte there can cost the parser fifty."""

TEXT_CHARS = 300
"""How much of the parser's explanation is passed on."""

# Possessive and with an end of its own, so that no text, ended or not, makes it look twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


class Codec(Protocol):
    def decode(self, kind: type[M], data: bytes) -> M:
        """Raises: InvalidSpec."""
        ...

    @property
    def encoding(self) -> Encoding: ...


class Json:
    def decode(self, kind: type[M], data: bytes) -> M:
        if not data:
            raise InvalidSpec("the message is empty; send {} for one without fields")
        check_size(kind, data)
        refuse_tangles(data)
        value = loaded(data)
        fields.refuse_strangers(kind.DESCRIPTOR, value)
        try:
            return json_format.ParseDict(value, kind())
        except Exception as error:  # noqa: BLE001 - the parser says ParseError for most that is wrong, not for all
            raise InvalidSpec(brief(str(error))) from None

    encoding = encoding.JSON


class Proto:
    def decode(self, kind: type[M], data: bytes) -> M:
        return parsed(kind, data)

    encoding = encoding.PROTO


JSON: Codec = Json()
PROTO: Codec = Proto()


def refuse_tangles(data: bytes) -> None:
    """Requests are few values, some of them long; a long text of many values only costs memory. Raises: InvalidSpec."""
    if sum(data.count(mark) for mark in (b",", b":", b"[", b"{")) <= STRUCTURE_BYTES:
        return
    seen, end = 0, 0
    for string in _STRING.finditer(data):
        seen += 1 + string.start() - end
        end = string.end()
        if seen > STRUCTURE_BYTES:
            break
    if seen + len(data) - end > STRUCTURE_BYTES:
        raise InvalidSpec(f"the JSON has more than {STRUCTURE_BYTES} bytes outside of its strings")


def loaded(data: bytes) -> Any:
    """Raises: InvalidSpec."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=once_each)
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"the JSON is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise InvalidSpec("the JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidSpec(f"this is not JSON: {brief(str(error))}") from None


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object's members; of two with one name nobody can say which was meant."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name comes twice in one object")
    return members


def brief(text: str) -> str:
    """One line, printable and not too long: it may quote what the caller sent."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= TEXT_CHARS else f"{line[:TEXT_CHARS]}…"
