"""Lines ↔ JSON-RPC messages. A line that is none is answered with the protocol's error, and the stream goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json

__all__ = ["Batch", "Refused", "encoded", "error", "parsed"]

BATCH = 20
"""Messages in one line; more of them are more lines."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What to answer to something that is no message."""

    answer: JSONRPCError


@dataclass(frozen=True, slots=True)
class Batch:
    """Several messages in one line, as early revisions have it: their answers come in one line, too."""

    items: tuple[JSONRPCMessage | Refused, ...]


def parsed(line: bytes) -> JSONRPCMessage | Batch | Refused:
    try:
        data = from_json(line, allow_inf_nan=False)
    except (ValueError, RecursionError) as problem:
        return Refused(error(None, PARSE_ERROR, f"this line is not JSON: {problem}"))
    if not isinstance(data, list):
        return _message(data)
    if not 0 < len(data) <= BATCH:
        return Refused(error(None, INVALID_REQUEST, f"a batch has 1 to {BATCH} messages"))
    return Batch(tuple(map(_message, data)))


def _message(data: Any) -> JSONRPCMessage | Refused:
    if isinstance(data, dict) and "method" in data and "id" in data and _id_of(data) is None:
        # The library would take it for a notification, and whoever sent it would wait for ever.
        return Refused(error(None, INVALID_REQUEST, "the id of a request is text or a whole number"))
    try:
        return jsonrpc_message_adapter.validate_python(data, by_name=False)
    except ValidationError:
        text = 'this line is not a JSON-RPC 2.0 message: an object with "jsonrpc": "2.0" and a method, or an answer'
        return Refused(error(_id_of(data), INVALID_REQUEST, text))


def _id_of(data: Any) -> RequestId | None:
    """Of what wanted to be a request, so that whoever sent it finds the answer."""
    found = data.get("id") if isinstance(data, dict) else None
    is_id = isinstance(found, str) or (isinstance(found, int) and not isinstance(found, bool))
    return found if is_id else None


def error(request_id: RequestId | None, code: int, text: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text))


def encoded(message: JSONRPCMessage) -> bytes:
    """One line, without its end."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        # Text that no UTF-8 can carry: whoever waits for the answer is told so.
        answered = getattr(message, "id", None)
        refusal = error(answered, INTERNAL_ERROR, "the answer holds text that is not Unicode")
        return refusal.model_dump_json(by_alias=True, exclude_unset=True).encode()
