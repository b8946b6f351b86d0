"""The chain, which is pure: each record carries its place, the hash of the one before and a seal of the server's.

The hash binds a record to all before it; the seal (an HMAC of the hash) cannot be made without the key, so the end of
the chain cannot be continued by anybody else. The head, sealed too, says where the chain begins and ends.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["BEGIN", "Broken", "End", "Fields", "Head", "check", "head_text", "read_head", "sealed"]

Fields: TypeAlias = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class End:
    """Where a chain ends: its last record's number and hash."""

    seq: int
    hash: str


BEGIN = End(0, "0" * 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    begins: End = BEGIN
    """The record before the first one that is kept."""
    ends: End = BEGIN


class Broken(Exception):
    """A record does not continue the chain; the text says how."""


def sealed(fields: Fields, *, after: End, key: bytes) -> tuple[bytes, End]:
    """The line of a record, and where the chain ends with it."""
    text = _text({**fields, "seq": after.seq + 1, "prev": after.hash})
    digest = _hash(text)
    line = f'{text[:-1]},"hash":"{digest}","seal":"{_seal(digest, key)}"}}\n'
    return line.encode(), End(after.seq + 1, digest)


def check(line: bytes, *, after: End, key: bytes) -> End:
    """Where the chain ends with this line. Raises: Broken."""
    body = _read(line)
    told, seal, seq = body.pop("hash", None), body.pop("seal", None), body.get("seq")
    if not isinstance(told, str) or not isinstance(seal, str) or type(seq) is not int:
        raise Broken("it is not a record of the audit trail")
    text = _text(body)
    digest = _hash(text)
    # Byte for byte, so that nothing can be said twice or in another way.
    if line != f'{text[:-1]},"hash":"{digest}","seal":"{seal}"}}\n'.encode():
        raise Broken("it was altered: its hash is another one")
    if not hmac.compare_digest(_seal(digest, key).encode(), seal.encode()):
        raise Broken("it is forged: its seal was not made with this server's key")
    _check_place(seq, str(body.get("prev")), after)
    return End(seq, digest)


def _check_place(seq: int, prev: str, after: End) -> None:
    if seq > after.seq + 1:
        missing = f"record {after.seq + 1} is" if seq == after.seq + 2 else f"records {after.seq + 1} to {seq - 1} are"
        raise Broken(f"{missing} missing before it")
    if seq <= after.seq:
        raise Broken(f"it is out of order: it comes after record {after.seq}")
    if prev != after.hash:
        raise Broken("it does not continue the record before it")


def head_text(head: Head, key: bytes) -> str:
    begins, ends = head.begins, head.ends
    body = {"begins": [begins.seq, begins.hash], "ends": [ends.seq, ends.hash]}
    return _text({**body, "seal": _seal(_hash(_text(body)), key)}) + "\n"


def read_head(text: bytes, key: bytes) -> Head:
    """Raises: Broken when it is not one, or not sealed with this key."""
    body = _read(text)
    seal = body.pop("seal", None)
    if not isinstance(seal, str) or not hmac.compare_digest(_seal(_hash(_text(body)), key).encode(), seal.encode()):
        raise Broken("the head was not sealed with this server's key")
    return Head(begins=_end(body.get("begins")), ends=_end(body.get("ends")))


def _end(told: object) -> End:
    match told:
        case [int(seq), str(digest)]:
            return End(seq, digest)
        case _:
            raise Broken("the head is not readable")


def _read(line: bytes) -> dict[str, object]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Broken("it is not readable as JSON")
    return body


def _text(body: Mapping[str, object]) -> str:
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _seal(digest: str, key: bytes) -> str:
    return hmac.digest(key, digest.encode(), "sha256").hex()
