"""How the Connect protocol says that a call went wrong, for whichever client reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Refused", "ended", "parsed", "refused"]

SHOWN_BYTES = 200


class Refused(NamedTuple):
    """The protocol's word, a text for people, and what the server said beside it."""

    code: str
    text: str
    beside: Mapping[str, str]


def parsed(body: bytes) -> dict[str, object] | None:
    """An object of JSON; None for anything else."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def refused(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """What an answer says that is not 200."""
    told = parsed(body)
    if told is None:
        return Refused("unknown", f"the server answered {status}: {body[:SHOWN_BYTES]!r}", {})
    return Refused(_text(told, "code") or "unknown", _text(told, "message") or f"the server answered {status}", headers)


def ended(body: bytes) -> Refused | None:
    """What the last envelope of a stream says; None when all went well."""
    told = parsed(body)
    if told is None:
        return Refused("internal", f"the end of the server's answer is no object: {body[:SHOWN_BYTES]!r}", {})
    if "error" not in told:
        return None
    error, trailers = _part(told, "error"), _part(told, "metadata")
    beside = {name: str(values[0]) for name, values in trailers.items() if isinstance(values, list) and values}
    return Refused(_text(error, "code") or "unknown", _text(error, "message") or "the server gave no reason", beside)


def _part(told: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _text(told: Mapping[str, object], name: str) -> str:
    return str(told.get(name, ""))
