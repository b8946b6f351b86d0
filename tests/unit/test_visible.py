"""What would steer a terminal, or is not seen, is shown by its number; everything else stays as it is."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.visible import TerminalText, first_unseen, quoted, shown, terminal_safe

UNSEEN = {
    "escape": "\x1b",
    "delete": "\x7f",
    "C1 control": "\x9b",
    "zero width space": "\u200b",
    "right-to-left override": "\u202e",
    "isolate": "\u2066",
    "line separator": "\u2028",
    "no-break space": "\xa0",
    "ideographic space": "\u3000",
    "soft hyphen": "\xad",
    "byte order mark": "\ufeff",
    "hangul filler": "\u3164",
    "halfwidth hangul filler": "\uffa0",
    "hangul choseong filler": "\u115f",
    "blank braille": "\u2800",
    "null notehead": "\U0001d159",
    "combining grapheme joiner": "\u034f",
    "khmer inherent vowel": "\u17b4",
    "variation selector 16": "\ufe0f",
    "variation selector 256": "\U000e01ef",
    "tag": "\U000e0041",
    "private use": "\ue000",
    "unassigned": "\u0378",
    "surrogate": "\udc9b",
    "mark on nothing": " \u0336",
    "enclosing mark": "a\u20dd",
}
SEEN = ["plain text", "größer", "日本語", "한국어", "हिन्दी", "ไทยที่", "مرحبا", "e\u0301", "→ ≤ ½ ☃", "a\u0308\u0301"]


@pytest.mark.parametrize("text", UNSEEN.values(), ids=list(UNSEEN))
def test_what_is_not_seen_is_shown_by_its_number(text: str) -> None:
    hidden = text[-1]
    number = f"{ord(hidden):x}"
    assert number in shown(f"x{text}y")
    assert hidden not in shown(f"x{text}y")
    assert first_unseen(f"x{text}y") == hidden
    assert shown(text, keep=hidden).endswith(hidden)


@pytest.mark.parametrize("text", SEEN)
def test_what_is_seen_stays(text: str) -> None:
    assert shown(text) == terminal_safe(text) == text
    assert first_unseen(text) == ""


def test_marks_that_are_heaped_on_a_letter_are_shown_by_their_numbers() -> None:
    assert shown("a" + "\u0300" * 5) == "a\u0300\u0300" + r"\u0300" * 3


@given(st.text(st.characters(codec=None)))
def test_nothing_that_steers_is_left(text: str) -> None:
    for made in (terminal_safe(text), shown(text), quoted(text)):
        assert made.isprintable()
        assert all(unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} for char in made)
    assert terminal_safe(text, keep="\n").replace("\n", "").isprintable()


@given(st.text())
def test_a_quoted_word_cannot_end_its_quotation(text: str) -> None:
    made = quoted(text)
    assert made[0] == made[-1] == '"'
    inner = made[1:-1].replace("\\\\", "")
    assert inner.count('"') == inner.count('\\"')


@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xc3", b"\xa4", b"\x1b[31m", b"\xff", b"\xc2\x9b"]), max_size=12)
)
def test_text_for_a_terminal_does_not_depend_on_how_it_was_cut(pieces: list[bytes]) -> None:
    def made(cut: list[bytes]) -> str:
        text = TerminalText()
        return "".join(map(text.feed, cut)) + text.feed(b"", final=True)

    whole = made([b"".join(pieces)])
    assert made(pieces) == whole
    assert whole.replace("\n", "").isprintable()


def test_a_program_at_a_terminal_keeps_its_lines() -> None:
    text = TerminalText()
    assert text.feed(b"10%\r20%\r") == "10%\n20%\n"
    assert text.feed(b"\ndone\r\n\tok\x07\x1b]0;title\x07") == "done\n\tok\\x07\\x1b]0;title\\x07"
