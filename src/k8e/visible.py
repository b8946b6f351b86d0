"""Text from outside, made visible: what would steer a terminal, or is not seen at all, is shown by its number.

Two questions, two sets of characters:

- What can steer? Everything that Unicode does not call printable: controls (C0, DEL and C1), formats (the bidirectional ones
  among them), separators other than the space. `terminal_safe` shows them as escapes.
- What is not seen? Also characters of which Unicode says that they may be drawn as nothing (`Default_Ignorable_Code_Point`: fillers,
  joiners, variation selectors, tags), and marks that are heaped on a letter or stand on none. `shown` shows these too. It is for
  text that a person is to judge.
"""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Any, Final

__all__ = ["LINES", "SUSPECT", "TerminalText", "first_unseen", "only_seen", "quoted", "shown", "terminal_safe"]

LINES: Final = "\n\t"
"""What may stay where text has lines."""
SUSPECT: Final = re.compile("[^ -~]")
"""Characters that are worth a look: all but printable ASCII."""
MARKS: Final = 2
"""On one letter. Scripts that need marks need no more; heaps of them cover the lines around."""


def terminal_safe(text: str, *, keep: str = "") -> str:
    """With everything that can steer a terminal as an escape, but for what is to be kept."""
    if text.isprintable():
        return text
    return SUSPECT.sub(lambda found: found[0] if found[0].isprintable() or found[0] in keep else escape(found[0]), text)


def shown(text: str, *, keep: str = "") -> str:
    """With everything that is not seen as an escape, but for what is to be kept."""
    if text.isascii():
        return terminal_safe(text, keep=keep)
    return terminal_safe(
        unseen().sub(lambda found: found[0] if found[0] in keep else escape(found[0]), text), keep=keep
    )


def first_unseen(text: str, *, keep: str = "") -> str:
    """The first character that is not seen, or nothing."""
    steering = next((char for char in text if not char.isprintable() and char not in keep), "")
    if steering or text.isascii():
        return steering
    return next((str(found[0]) for found in unseen().finditer(text) if found[0] not in keep), "")


def only_seen(text: str, *, keep: str = "") -> str:
    """Without what is not seen, but for what is to be kept."""
    kept = unseen().sub(lambda found: found[0] if found[0] in keep else "", text)
    return "".join(char for char in kept if char.isprintable() or char in keep)


def quoted(text: str) -> str:
    """As a word of somebody else's: between quotation marks that it cannot end."""
    return f'"{shown(text.replace(chr(92), 2 * chr(92)).replace(chr(34), chr(92) + chr(34)))}"'


def escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


@cache
def unseen() -> Any:
    """The expression for one character that is not seen."""
    import regex  # type: ignore[import-untyped]  # has no types; knows Unicode's properties, which `re` does not

    # The last two are symbols whose picture is empty; no property says so.
    return regex.compile(
        r"[[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\p{Me}\u2800\U0001d159]--[ ]]"
        rf"|(?<=\p{{M}}{{{MARKS}}})\p{{M}}|(?<![\p{{L}}\p{{M}}\p{{N}}])\p{{M}}",
        regex.VERSION1,
    )


class TerminalText:
    """Bytes of a program as text for a terminal that they cannot steer, however they are cut.

    A carriage return, by which programs write over their own line, begins a new one.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._after_return = False

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        return terminal_safe(text.replace("\r\n", "\n").replace("\r", "\n"), keep=LINES)
