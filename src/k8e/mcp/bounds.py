"""How much text an answer has: of what is longer, the beginning and the end, with what is left out between them.

A model reads an answer whole, so its length is bounded by characters; those of output as they stand in JSON, where a
control character is six. Everything here is pure.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "DEFAULT_CHARS",
    "LEAST_CHARS",
    "MOST_CHARS",
    "Ends",
    "Part",
    "beginning",
    "fitting",
    "in_json",
    "needed_bytes",
    "shares",
    "shorter",
    "shown",
]

DEFAULT_CHARS = 25_000
LEAST_CHARS = 1_000
MOST_CHARS = 200_000
"""What a call may ask for where the server does not say."""
CHAR_BYTES = 4
"""Of one character in UTF-8, at most."""
GAP_CHARS = 120
"""For the words between the beginning and the end."""

Cost = Callable[[str], int]
T = TypeVar("T")


def in_json(text: str) -> int:
    """How many characters a text has in JSON, without the quotes around it."""
    return len(json.dumps(text, ensure_ascii=False)) - 2


def needed_bytes(chars: int) -> int:
    """So many bytes may be a text of no more than so many characters; more never are."""
    return chars * CHAR_BYTES


class Ends:
    """The first and the last bytes of a stream, at least `most` of them together; what is between is only counted."""

    def __init__(self, most: int) -> None:
        self._half = most // 2 + CHAR_BYTES
        self._first = bytearray()
        self._last = bytearray()
        self.total = 0

    @classmethod
    def of(cls, first: bytes, last: bytes, total: int) -> Ends:
        """Of so many bytes in all."""
        ends = cls(0)
        ends._first, ends._last, ends.total = bytearray(first), bytearray(last), total
        return ends

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._first)
        self._first += data[:room]
        self._last += data[room:]
        # Not with each piece: to move the end forward costs as much as the end is long.
        if len(self._last) > 2 * self._half:
            del self._last[: -self._half]

    @property
    def is_whole(self) -> bool:
        return self.total == len(self._first) + len(self._last)

    @property
    def first(self) -> bytes:
        return bytes(self._first + self._last if self.is_whole else self._first)

    @property
    def last(self) -> bytes:
        return self.first if self.is_whole else bytes(self._last)

    def chars(self, cost: Cost = in_json) -> int:
        """How long the text of it is; where some of it is gone, more than an answer can have."""
        return cost(self.first.decode("utf-8", "replace")) if self.is_whole else self.total


@dataclass(frozen=True, slots=True)
class Part:
    """A text as it is shown, and which bytes of the original are left out of it: none where `begin` is `end`."""

    text: str
    begin: int
    end: int
    total: int

    @property
    def is_cut(self) -> bool:
        return self.begin < self.end


def shown(ends: Ends, most: int, cost: Cost = in_json) -> Part:
    """The whole text where it has no more than so many characters, else its beginning and its end."""
    if ends.is_whole:
        text = ends.first.decode("utf-8", "replace")
        if cost(text) <= most:
            return Part(text, ends.total, ends.total, ends.total)
    each = max(0, most - GAP_CHARS) // 2
    head, begin = beginning(ends.first, each, cost)
    tail, size = ending(ends.last, each, cost)
    end = ends.total - size
    gap = f"\n[… {end - begin} of {ends.total} bytes are left out here …]\n"
    return Part(f"{head}{gap}{tail}", begin, end, ends.total)


def beginning(data: bytes, most: int, cost: Cost = in_json) -> tuple[str, int]:
    """As much text from the beginning as has no more than so many characters, and how many bytes of it that is."""
    text = data[: needed_bytes(most)].decode("utf-8", "surrogateescape")[:most]
    # Each longer beginning costs more, so the longest that fits is found by halving.
    count = bisect_right(range(len(text) + 1), most, key=lambda count: cost(text[:count])) - 1
    return original(text[:count])


def ending(data: bytes, most: int, cost: Cost = in_json) -> tuple[str, int]:
    """The same from the end."""
    start = max(0, len(data) - needed_bytes(most))
    while start and start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1  # in the middle of a character
    text = data[start:].decode("utf-8", "surrogateescape")
    text = text[max(0, len(text) - most) :]
    count = bisect_right(range(len(text) + 1), most, key=lambda count: cost(text[len(text) - count :])) - 1
    return original(text[len(text) - count :])


def original(text: str) -> tuple[str, int]:
    """A text of which some bytes are no UTF-8, as it is shown, and how many bytes it was."""
    data = text.encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "replace"), len(data)


def shares(wanted: Sequence[int], most: int) -> list[int]:
    """What each of several texts may have of `most`: all that it wants, or an equal share of what the shorter ones leave."""
    given, left = [0] * len(wanted), most
    for done, index in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        given[index] = min(wanted[index], left // (len(wanted) - done))
        left -= given[index]
    return given


def fitting(items: Sequence[T], most: int, cost: Callable[[T], int]) -> list[T]:
    """As many of the first as have no more than so many characters together; one, where there is one, in any case."""
    found: list[T] = []
    for item in items:
        most -= cost(item)
        if most < 0 and found:
            break
        found.append(item)
    return found


def shorter(text: str, most: int) -> str:
    """A text of somebody else's in no more than so many characters, as JSON has them."""
    ends = Ends(needed_bytes(most))
    ends.add(text.encode("utf-8", "surrogateescape"))
    return shown(ends, most).text
