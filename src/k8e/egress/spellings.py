"""Finds secrets in what a server sends back, in whatever spelling it echoes them. No I/O.

The text is decoded first, without a look at any secret. Backslash escapes (JSON, JavaScript, C, shells), percent codes and HTML
entities are undone layer by layer: each kind alone, each followed by each, and all kinds at once three times. Every result that
differs is a `View` of the text. In each of them each secret is then searched for: as it is, in hexadecimal digits, and within
base64, where it can stand at three places of a group of three bytes. Of long ones RE2 searches for the first 256 characters.

SAFETY: a program inside may choose the text, and must not learn from the time of a search, or from its being given up, how a secret
begins. Decoding does not depend on secrets, nothing is given up, and RE2 takes one step for each byte, matching or not.
"""

from __future__ import annotations

import base64
import re
import string
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import accumulate
from typing import Final

import re2  # type: ignore[import-untyped]  # the library ships no types

__all__ = ["FROM_THE_BEGINNING", "Decoded", "SecretPattern", "View"]

BYTES_PER_CHARACTER: Final = 12
FULLY_ESCAPED: Final = 256
BYTES_PER_FURTHER_CHARACTER: Final = 3
"""The longest echo: twelve bytes for each of the first 256 characters of a secret, three for each further one."""
WINDOW: Final = 256
"""Characters of each form of a secret that RE2 searches for: its memory grows with them. The rest is then compared."""
SEARCH_MEMORY: Final = 8 * 1024 * 1024

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
BREAKS: Final = Kind(b"\n", re.compile(rb"\r?\n[ \t]*"))
Chain = tuple[tuple[Kind, ...], ...]
CHAINS: Final[tuple[Chain, ...]] = (*(((one,), (two,)) for one in KINDS for two in KINDS), (KINDS, KINDS, KINDS))
"""What is undone, one layer after another."""
FROM_THE_BEGINNING: Final = (0,) * len(CHAINS)
"""Where each chain begins in a text that is no part of a longer one."""
CLEAR: Final = re.compile(rb"[^\\%&#;{}0-9A-Za-z]")
"""A character that is part of no escape, or the last one of it: behind it all chains begin anew."""
CLEAR_WITHIN: Final = 64

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

    def __init__(
        self, data: bytes, parent: View | None = None, undone: re.Pattern[bytes] | None = None, *, offset: int = 0
    ) -> None:
        self.data = data
        self._parent = parent
        self._undone = undone
        self.offset: int = parent.offset if parent else offset
        """Where in the text it begins."""
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
            return self.offset + index
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


class Decoded:
    """A text with all its views. It may be a part of a longer one: then each chain begins where it can."""

    def __init__(self, data: bytes, starts: Sequence[int] = FROM_THE_BEGINNING) -> None:
        self._data = data
        texts = {start: View(data[start:], offset=start) for start in set(starts)}
        self._chains = [_layers(texts[start], chain) for start, chain in zip(starts, CHAINS, strict=True)]

    def views(self) -> list[View]:
        """All views, each content once."""
        made = [view for chain in self._chains for view in chain]
        made += [view.without(BREAKS) for view in made]  # base64 and digits may go on over lines
        return list({(view.offset, view.data): view for view in reversed(made)}.values())

    def starts_before(self, place: int) -> list[int]:
        """For each chain the last place, up to this one, from which on the text can be decoded as if nothing were before it.

        In a run of backslashes that is only every second one, or every fourth: which, only somebody can tell who knows where the
        run began.
        """
        clear = [found.end() for found in CLEAR.finditer(self._data, max(place - CLEAR_WITHIN, 0), place)]
        if clear:
            return [clear[-1]] * len(CHAINS)
        return [_start_before(chain[-1], place) for chain in self._chains]


def _layers(text: View, chain: Chain) -> list[View]:
    layers = [text]
    for kinds in chain:
        layers.append(layers[-1].without(*kinds))
    return layers


def _start_before(view: View, place: int) -> int:
    after = bisect_right(range(len(view.data) + 1), place, key=view.origin)
    return view.origin(max(after - 1, 0))


# --- the secret -------------------------------------------------------------------------------------------------------


class SecretPattern:
    """What finds one secret."""

    def __init__(self, value: bytes) -> None:
        self._forms = tuple(_forms(value))
        options = re2.Options()
        options.max_mem, options.never_capture, options.log_errors = SEARCH_MEMORY, True, False
        options.encoding, options.longest_match = re2.Options.Encoding.LATIN1, True
        self._search = re2.compile(b"|".join(form.expression() for form in self._forms), options)
        self._is_long = any(len(form.characters) > WINDOW for form in self._forms)
        more = max(len(value) - FULLY_ESCAPED, 0)
        self.most_bytes = BYTES_PER_CHARACTER * (len(value) - more) + BYTES_PER_FURTHER_CHARACTER * more

    def spans(self, view: View) -> Iterator[tuple[int, int]]:
        """Where in the text echoes begin and end that are found in this view of it."""
        for found in self._search.finditer(view.data):
            start, end = found.span()
            if self._is_long:
                # Only the beginning was found; where the rest is something else, nothing is an echo.
                end = max(form.end(view.data, start) for form in self._forms)
            if end > 0:
                yield view.origin(start), view.origin(end, is_end=True)


@dataclass(frozen=True, slots=True)
class Form:
    """A secret as it is, or as an encoder of bytes writes it."""

    characters: bytes
    is_digits: bool = False
    """Of either case."""
    shared_before: bool = False
    shared_after: bool = False
    """Whether the character of base64 beside it stands for a part of the secret too."""

    def expression(self) -> bytes:
        """For its first characters. A space may be a plus sign, as HTML forms write it."""
        text: bytes = re2.escape(self.characters[:WINDOW]).replace(re2.escape(b" "), b"[ +]")
        before = BASE64_CHARACTER if self.shared_before else b""
        after = BASE64_CHARACTER if self.shared_after and len(self.characters) <= WINDOW else b""
        return before + (b"(?i:" + text + b")" if self.is_digits else text) + after

    def end(self, data: bytes, start: int) -> int:
        """Where an echo that begins at this place ends; 0 where there is none."""
        for begin in (start, start + 1) if self.shared_before else (start,):
            end = begin + len(self.characters)
            if self._same(data[begin:end]):
                return end + (1 if self.shared_after and data[end : end + 1] in BASE64_CHARACTERS else 0)
        return 0

    def _same(self, text: bytes) -> bool:
        if self.is_digits:
            return text.lower() == self.characters
        return text.replace(b" ", b"+") == self.characters.replace(b" ", b"+")


BASE64_CHARACTERS: Final = frozenset(bytes((char,)) for char in string.ascii_letters.encode() + b"0123456789+/_-")
BASE64_CHARACTER: Final = b"[0-9A-Za-z+/_-]?"


def _forms(value: bytes) -> Iterator[Form]:
    yield Form(value)
    yield Form(value.hex().encode(), is_digits=True)
    for offset in range(3):
        core = _base64_core(value, offset)
        for characters in (core, core.translate(bytes.maketrans(b"+/", b"-_"))):
            yield Form(characters, shared_before=offset > 0, shared_after=(offset + len(value)) % 3 > 0)


def _base64_core(value: bytes, offset: int) -> bytes:
    """The characters that stand for the value and nothing beside it, `offset` bytes into a group of three.

    Whatever is encoded together with it, such as the user before a password, these characters are the same.
    """
    whole = base64.b64encode(bytes(offset) + value).rstrip(b"=")
    last = len(whole) - (1 if (offset + len(value)) % 3 else 0)
    return whole[(0, 2, 3)[offset] : last]
