"""Finds a secret in what a server sends back, in whatever spelling it echoes it. No I/O.

A secret is not looked for as a list of spellings. Each of its characters is compared with what the text may *mean* at that
place: the byte itself, a backslash escape (JSON, JavaScript, C, shells), a percent code, an HTML entity, or one of these within
another, as in JSON inside JSON. The same is done for the secret in base64 (at each of the three places in a group of three
bytes, in both alphabets, with line breaks) and in hexadecimal digits.

Reading a text this way in Python is slow, so RE2 finds the places where reading is worth while: those where the first
characters of a form may begin. Its expression accepts more than the reading does, never less.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.entities import html5
from typing import Final

import re2  # type: ignore[import-untyped]  # the library ships no types

__all__ = ["SecretPattern", "Text", "Unsearchable"]

LAYERS: Final = 3
"""Escapes within escapes that are undone."""
BYTES_PER_CHARACTER: Final = 12
"""What an echo may take for each character of a secret; a longer one is not found, so that the bytes to hold back are bounded."""
BYTES_PER_BASE64_CHARACTER: Final = 3
BYTES_PER_HEX_DIGIT: Final = 2
"""Less, because encoders leave letters and digits alone; there is room for the line breaks in between."""
FILTERED_CHARACTERS: Final = 4
"""Of each form, that the filter looks for. All forms are longer."""
FILTER_MEMORY: Final = 8 * 1024 * 1024
STEPS_PER_BYTE: Final = 3
STEPS_AT_LEAST: Final = 8192
"""How long a text may be searched. One with many echoes takes a step or two per byte; what takes more is made for it."""

BACKSLASH, PERCENT, AMPERSAND, PLUS, SPACE = b"\\%&+ "
INTRODUCERS: Final = frozenset(b"\\%&")
BREAK: Final = b"\r\n"
"""Either of them, or both."""
NAMES: Final = {
    name[:-1]: ord(char) for name, char in html5.items() if name.endswith(";") and len(char) == 1 and char.isascii()
}
"""HTML's names of ASCII characters: `amp`, `sol`, `plus`."""

AFTER_BACKSLASH: Final = re.compile(
    rb"u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u(?:\{|%7[bB])([0-9A-Fa-f]{1,6})(?:\}|%7[dD])|x([0-9A-Fa-f]{2})|([0-3][0-7]{2})|([nr])"
)
AFTER_PERCENT: Final = re.compile(rb"([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
AFTER_AMPERSAND: Final = re.compile(
    rb"(?:(?:#|%23)(?:([0-9]{1,7})|[xX]([0-9A-Fa-f]{1,6}))(?:;|%3[bB])?)|([A-Za-z]{2,24})(?:;|%3[bB])"
)

Reading = tuple[int, int]
"""A character, and where the bytes that mean it end."""


class Unsearchable(ValueError):
    """What cannot be searched for secrets, and so must not pass."""


class Text:
    """A text that is searched, with what its bytes may mean. Each place is read once, and the steps are counted."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._known: dict[tuple[int, int], frozenset[Reading]] = {}
        self._steps_left = STEPS_AT_LEAST + STEPS_PER_BYTE * len(data)

    def step(self, count: int = 1) -> None:
        """Count what a search does. Raises: Unsearchable when it was too much."""
        self._steps_left -= count
        if self._steps_left < 0:
            raise Unsearchable("a text that can be read in too many ways")

    def readings(self, at: int, layers: int = LAYERS) -> frozenset[Reading]:
        """Each character that may be meant by what begins here."""
        data = self.data
        if at >= len(data):
            return frozenset()
        if layers == 0 or data[at] not in INTRODUCERS:
            return frozenset({(data[at], at + 1)})
        if (known := self._known.get((at, layers))) is None:
            # A secret is ASCII: other characters cannot be part of it, and some numbers are no character at all.
            known = frozenset(each for each in self._escapes(at, layers - 1) if 0 <= each[0] < 128)
            self._known[at, layers] = known
        return known

    def _escapes(self, at: int, layers: int) -> Iterator[Reading]:
        for char, end in self.readings(at, layers):
            yield char, end
            if char == BACKSLASH:
                yield from self._after_backslash(end, layers)
            elif char == PERCENT and (found := AFTER_PERCENT.match(self.data, end)):
                yield int(found[1] or found[2], 16), found.end()
            elif char == AMPERSAND and (found := AFTER_AMPERSAND.match(self.data, end)):
                yield _entity(found), found.end()

    def _after_backslash(self, at: int, layers: int) -> Iterator[Reading]:
        if found := AFTER_BACKSLASH.match(self.data, at):
            digits = found[1] or found[2] or found[3] or found[4]
            if digits:
                yield int(digits, 16), found.end()
            elif found[5]:
                yield int(found[5], 8), found.end()
            else:
                yield (10 if found[6] == b"n" else 13), found.end()
        # Before a letter or a digit a backslash makes another character of it; before anything else it means nothing.
        yield from ((char, end) for char, end in self.readings(at, layers) if not chr(char).isalnum())


def _entity(found: re.Match[bytes]) -> int:
    if found[1]:
        return int(found[1])
    return int(found[2], 16) if found[2] else NAMES.get(found[3].decode(), -1)


@dataclass(frozen=True, slots=True)
class Form:
    """A secret as it is, or as an encoder of bytes writes it."""

    characters: bytes
    same: bytes
    """For `bytes.translate`: characters that mean the same become one."""
    most_bytes: int
    may_break: bool = False
    """Whether lines may end between any two characters."""

    def end(self, text: Text, start: int) -> int:
        """Where an echo of it that begins at this place ends; -1 when there is none. Raises: Unsearchable."""
        plain_end = start + len(self.characters)
        if text.data[start:plain_end].translate(self.same) == self.characters:
            return plain_end
        ends = {start}
        for char in self.characters:
            text.step(len(ends))
            ends = {end for at in ends for end in self._after(text, at, char)}
            if not ends:
                return -1
        found = max(ends)
        return found if found - start <= self.most_bytes else -1

    def _after(self, text: Text, at: int, char: int) -> set[int]:
        places = {at}
        if self.may_break:
            for one in BREAK:
                places |= {end for place in places for meant, end in text.readings(place) if meant == one}
        return {end for place in places for meant, end in text.readings(place) if self._means(meant, char)}

    def _means(self, meant: int, char: int) -> bool:
        if meant == PLUS and char == SPACE:
            return True  # as HTML forms write it
        return self.same[meant] == char


AS_IT_IS: Final = bytes(range(256))
BASE64: Final = bytes.maketrans(b"-_", b"+/")
HEX: Final = bytes.maketrans(b"ABCDEF", b"abcdef")


class SecretPattern:
    """What finds one secret."""

    def __init__(self, value: bytes) -> None:
        self._forms = tuple(_forms(value))
        self._filter = _filter(self._forms)
        self.most_bytes = max(form.most_bytes for form in self._forms)

    def find(self, text: Text, start: int = 0) -> tuple[int, int] | None:
        """Where the next echo begins and ends; of several that begin together the longest. Raises: Unsearchable."""
        while candidate := self._filter.search(text.data, start):
            begin: int = candidate.start()
            text.step()
            end = max(form.end(text, begin) for form in self._forms)
            if end > 0:
                return begin, end
            start = begin + 1
        return None


def _forms(value: bytes) -> Iterator[Form]:
    yield Form(value, AS_IT_IS, BYTES_PER_CHARACTER * len(value))
    digits = value.hex().encode()
    yield Form(digits, HEX, BYTES_PER_HEX_DIGIT * len(digits), may_break=True)
    for offset in range(3):
        core = _base64_core(value, offset)
        yield Form(core, BASE64, BYTES_PER_BASE64_CHARACTER * len(core), may_break=True)


def _base64_core(value: bytes, offset: int) -> bytes:
    """The characters that stand for the value and nothing beside it, `offset` bytes into a group of three.

    Whatever is encoded together with it, such as the user before a password, these characters are the same.
    """
    whole = base64.b64encode(bytes(offset) + value).rstrip(b"=")
    last = len(whole) - (1 if (offset + len(value)) % 3 else 0)
    return whole[(0, 2, 3)[offset] : last]


# --- the filter: an expression that matches wherever `Form.end` may -------------------------------------------------


def _filter(forms: tuple[Form, ...]) -> re2._Regexp:
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = FILTER_MEMORY, True, False
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile("|".join(map(_beginning, forms)).encode("latin-1"), options)


def _beginning(form: Form) -> str:
    between = BREAKS_EXPRESSION if form.may_break else ""
    return between.join(_spelled(form, char) for char in form.characters[:FILTERED_CHARACTERS])


def _spelled(form: Form, char: int) -> str:
    return "(?:" + "|".join(_ways(each) for each in range(32, 127) if form.same[each] == char) + ")"


def _ways(char: int) -> str:
    plain = re.escape(chr(char))
    ways = f"{plain}|{INTRODUCED}(?:{plain}|{_codes(char)})"
    return f"{ways}|{_ways(PLUS)}" if char == SPACE else ways


def _codes(*chars: int) -> str:
    """What stands for one of these characters after the byte that introduces an escape, whichever it is."""
    digits = "|".join(f"{_either_case(f'{char:02x}')}|{char}|{char:03o}" for char in chars)
    names = "".join(f"|{name}" for name, char in NAMES.items() if char in chars)
    return rf"(?:(?:(?:#|%23)?[xXuU]?(?:\{{|%7[bB])?0*)(?:{digits})(?:\}}|%7[dD])?{names})(?:;|%3[bB])?"


def _either_case(digits: str) -> str:
    return "".join(f"[{each}{each.upper()}]" if each.isalpha() else each for each in digits)


INTRODUCED: Final = rf"[\\%&](?:[\\%&]|{_codes(*sorted(INTRODUCERS))})*"
"""One of the bytes that introduce escapes, itself escaped or not, any number of times."""
BREAKS_EXPRESSION: Final = rf"(?:[\r\n]|{INTRODUCED}(?:[nr]|{_codes(*BREAK)}))*"
