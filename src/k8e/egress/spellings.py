"""Finds secrets in what a server sends back, in whatever spelling it echoes them. No I/O.

The text is decoded first, without a look at any secret. Backslash escapes (JSON, JavaScript, C, shells), percent codes and HTML
entities are undone layer by layer: each kind alone, each followed by each, and all kinds at once three times. Every result that
differs is a `View` of the text. In each of them each secret is then searched for: as it is, in hexadecimal digits, and within
base64, where it can stand at three places of a group of three bytes.

SAFETY: a program inside may choose the text, and must not learn from the time of a search, or from its being given up, how a secret
begins. Decoding does not depend on secrets, nothing is given up, and RE2 takes one step for each byte, matching or not.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import accumulate
from typing import Final

import re2  # type: ignore[import-untyped]  # the library ships no types

__all__ = ["SecretPattern", "View", "views"]

BYTES_PER_CHARACTER: Final = 12
FULLY_ESCAPED: Final = 256
BYTES_PER_FURTHER_CHARACTER: Final = 3
"""The longest echo: twelve bytes for each of the first 256 characters of a secret, three for each further one."""
SEARCH_MEMORY: Final = 32 * 1024 * 1024
"""At most, for one secret. RE2 takes it when it is needed: for secrets of thousands of characters."""

# --- the text ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of escape: the byte that each begins with, and what they look like."""

    introducer: bytes
    escapes: re.Pattern[bytes]


BACKSLASH: Final = rb"\\(?:u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,8}\}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|[0-3]?[0-7]{1,2}|[nrt]|[^0-9A-Za-z\r\n])"
PERCENT: Final = rb"%(?:[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
ENTITY: Final = rb"&(?:#[0-9]{1,9};?|#[xX][0-9A-Fa-f]{1,8};?|[A-Za-z]{2,24};|amp|lt|gt|quot)"

KINDS: Final = tuple(
    Kind(first, re.compile(look)) for first, look in ((b"\\", BACKSLASH), (b"%", PERCENT), (b"&", ENTITY))
)
ALL_KINDS: Final = re.compile(b"|".join((BACKSLASH, PERCENT, ENTITY)))
BREAKS: Final = Kind(b"\n", re.compile(rb"\r?\n"))
LAYERS: Final = 3

CONTROLS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
NAMES: Final = {
    name.rstrip(";").encode(): char.encode() for name, char in html5.items() if len(char) == 1 and char.isascii()
}
"""HTML's names of ASCII characters: `amp`, `sol`, `plus`."""
NOT_ASCII: Final = b"\xff"
"""Stands for every character that no secret has."""


@lru_cache(maxsize=4096)
def meaning(escape: bytes) -> bytes:
    """What an escape stands for; what is none stands for itself, and a line break, where those are undone, for nothing."""
    body = escape[1:]
    match escape[:1]:
        case b"\\" if body[:1] in b"uUx":
            return _character(int(body[1:].strip(b"{}"), 16))
        case b"\\":
            return _character(int(body, 8)) if body.isdigit() else CONTROLS.get(body, body)
        case b"%":
            return _character(int(body.lstrip(b"u"), 16))
        case b"&" if body.startswith(b"#"):
            digits = body[1:].rstrip(b";")
            return _character(int(digits[1:], 16) if digits[:1] in b"xX" else int(digits))
        case b"&":
            return NAMES.get(body.rstrip(b";"), escape)
        case _:
            return b""


def _character(code: int) -> bytes:
    return bytes((code,)) if code < 128 else NOT_ASCII


class View:
    """A text, or another view of it with one layer of escapes undone; knows where in the text everything comes from."""

    def __init__(self, data: bytes, parent: View | None = None, undone: re.Pattern[bytes] | None = None) -> None:
        self.data = data
        self._parent = parent
        self._undone = undone
        self._children: dict[re.Pattern[bytes], View] = {}
        self._places: tuple[list[int], list[int]] | None = None

    def without(self, *kinds: Kind) -> View:
        """With one layer of these kinds of escapes undone, from left to right: all of them, or a single one."""
        present = [kind for kind in kinds if kind.introducer in self.data]
        if not present:
            return self
        escapes = present[0].escapes if len(present) == 1 else ALL_KINDS
        if escapes not in self._children:
            data = escapes.sub(lambda found: meaning(found[0]), self.data)
            self._children[escapes] = self if data == self.data else View(data, self, escapes)
        return self._children[escapes]

    def origin(self, index: int, *, is_end: bool = False) -> int:
        """Where in the text the byte at this place comes from; as an end, where what is before this place ends there."""
        if self._parent is None or self._undone is None:
            return index
        if self._places is None:
            self._places = _places(self._parent.data, self._undone)
        ends, shrunk = self._places
        # Line breaks that follow are not part of what is before them; every other escape ends with what it stands for.
        is_before_breaks = is_end and self._undone is BREAKS.escapes
        passed = bisect_left(ends, index if is_before_breaks else index + 1)
        return self._parent.origin(index + shrunk[passed], is_end=is_end)


def _places(data: bytes, undone: re.Pattern[bytes]) -> tuple[list[int], list[int]]:
    """For each escape: where what it stands for ends in the view without it, and how much shorter the view is from there on."""
    sizes = [(found.end(), len(found[0]) - len(meaning(found[0]))) for found in undone.finditer(data)]
    shrunk = [0, *accumulate(less for _, less in sizes)]
    ends = [end - total for (end, _), total in zip(sizes, shrunk[1:], strict=True)]
    return ends, shrunk


def views(data: bytes) -> list[View]:
    """All views of a text, each content once."""
    text = last = View(data)
    made = [text, *(text.without(first).without(second) for first in KINDS for second in KINDS)]
    made += [text.without(kind) for kind in KINDS]
    for _ in range(LAYERS):
        last = last.without(*KINDS)
        made.append(last)
    made += [view.without(BREAKS) for view in made]  # base64 and digits may go on over lines
    return list({view.data: view for view in reversed(made)}.values())


# --- the secret -------------------------------------------------------------------------------------------------------


class SecretPattern:
    """What finds one secret."""

    def __init__(self, value: bytes) -> None:
        options = re2.Options()
        options.max_mem, options.never_capture, options.log_errors = SEARCH_MEMORY, True, False
        options.encoding, options.longest_match = re2.Options.Encoding.LATIN1, True
        self._search = re2.compile(b"|".join(_expressions(value)), options)
        more = max(len(value) - FULLY_ESCAPED, 0)
        self.most_bytes = BYTES_PER_CHARACTER * (len(value) - more) + BYTES_PER_FURTHER_CHARACTER * more

    def spans(self, view: View) -> Iterator[tuple[int, int]]:
        """Where in the text echoes begin and end that are found in this view of it."""
        for found in self._search.finditer(view.data):
            yield view.origin(found.start()), view.origin(found.end(), is_end=True)


def _expressions(value: bytes) -> Iterator[bytes]:
    yield re2.escape(value).replace(re2.escape(b" "), b"[ +]")  # forms write a space as a plus sign
    yield b"(?i:" + value.hex().encode() + b")"
    for offset in range(3):
        core = _base64_core(value, offset)
        yield re2.escape(core)
        yield re2.escape(core.translate(bytes.maketrans(b"+/", b"-_")))


def _base64_core(value: bytes, offset: int) -> bytes:
    """The characters that stand for the value and nothing beside it, `offset` bytes into a group of three.

    Whatever is encoded together with it, such as the user before a password, these characters are the same.
    """
    whole = base64.b64encode(bytes(offset) + value).rstrip(b"=")
    last = len(whole) - (1 if (offset + len(value)) % 3 else 0)
    return whole[(0, 2, 3)[offset] : last]
