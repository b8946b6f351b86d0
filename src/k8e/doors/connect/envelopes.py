"""Envelopes of a stream: one byte of flags, four of length, then one message.

Pure: bytes in, messages out. No length is believed before it is checked, so a claim costs nothing.
"""

from __future__ import annotations

import struct

from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec

__all__ = ["END", "Envelopes", "enclosed"]

END = 2
"""The flag of the last envelope of an answer, which says how the call went."""

COMPRESSED = 1
HEAD = struct.Struct(">BI")


def enclosed(payload: bytes, *, flags: int = 0) -> bytes:
    return HEAD.pack(flags, len(payload)) + payload


class Envelopes:
    """What arrived of a stream, taken apart; holds at most one message and what came with its last piece."""

    def __init__(self) -> None:
        self._held = bytearray()

    def __len__(self) -> int:
        """How many bytes wait here."""
        return len(self._held)

    def feed(self, data: bytes) -> None:
        self._held += data

    def take(self) -> bytes | None:
        """The next message, if it is whole. Raises: InvalidSpec, Exhausted, HostUnsupported."""
        if len(self._held) < HEAD.size:
            return None
        flags, length = HEAD.unpack_from(self._held)
        refuse_unknown(flags)
        if length > MESSAGE_BYTES:
            raise Exhausted(f"a message of {length} bytes is longer than {MESSAGE_BYTES}; send it in pieces")
        end = HEAD.size + length
        if len(self._held) < end:
            return None
        message = bytes(memoryview(self._held)[HEAD.size : end])
        del self._held[:end]
        return message

    def finish(self) -> None:
        """The stream has ended. Raises: InvalidSpec when it did so in the middle of an envelope."""
        if self._held:
            raise InvalidSpec("the stream ends in the middle of an envelope")


def refuse_unknown(flags: int) -> None:
    if flags & COMPRESSED:
        raise HostUnsupported("compressed messages are not served; send them as they are")
    if flags:
        raise InvalidSpec(f"an envelope with flags {flags} is not a message; flags must be 0")
