"""Bytes of an input, taken apart into lines of a bounded length. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LINE_BYTES", "Lines", "TooLong"]

LINE_BYTES = 48 * 2**20 - 1024
"""A message of 64 MiB carries this much as base64, and the few letters around it."""
ENDS_BYTES = 4096


class TooLong(NamedTuple):
    """What was seen of a line that is longer than anybody takes."""

    head: bytes
    tail: bytes


class Lines:
    """Holds at most one line; of a longer one only its two ends."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()
        self._long: TooLong | None = None

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that are whole now, without their newlines; empty ones are none."""
        *ended, rest = data.split(b"\n")
        found = []
        for part in ended:
            self._keep(part)
            found += self.finish()
        self._keep(rest)
        return found

    def finish(self) -> list[bytes | TooLong]:
        """What was held, as the last line."""
        line: bytes | TooLong = self._long or bytes(self._held)
        self._long = None
        self._held = bytearray()
        return [line] if isinstance(line, TooLong) or line.strip() else []

    def _keep(self, part: bytes) -> None:
        if self._long:
            self._long = TooLong(self._long.head, (self._long.tail + part)[-ENDS_BYTES:])
            return
        self._held += part
        if len(self._held) > self._limit:
            self._long = TooLong(bytes(self._held[:ENDS_BYTES]), bytes(self._held[-ENDS_BYTES:]))
            self._held = bytearray()
