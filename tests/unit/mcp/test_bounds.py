"""What of a long text is shown: the beginning and the end, whole characters, and what is left out in numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from k8e.mcp.bounds import (
    DEFAULT_CHARS,
    MOST_CHARS,
    Ends,
    beginning,
    ending,
    fitting,
    in_json,
    needed_bytes,
    shares,
    shorter,
    shown,
)
from k8e.settings import ServerSettings, mcp_chars


def ends_of(data: bytes, most: int, *, piece: int = 7) -> Ends:
    ends = Ends(needed_bytes(most))
    for start in range(0, len(data), piece):
        ends.add(data[start : start + piece])
    return ends


@pytest.mark.parametrize("character", ["x", "ä", "中", "😀"])
def test_a_text_that_just_fits_is_whole_and_one_character_more_is_cut(character: str) -> None:
    fits = shown(ends_of((character * 1000).encode(), 1000), 1000)
    assert (fits.text, fits.is_cut) == (character * 1000, False)
    longer = shown(ends_of((character * 1001).encode(), 1000), 1000)
    assert longer.is_cut
    assert len(longer.text) <= 1000


@pytest.mark.parametrize("character", ["x", "ä", "中", "😀", "\n", '"', "\x00", "\x1b", "\x7f", "\u202e"])
@pytest.mark.parametrize("count", [2_000, 100_000])
def test_no_text_has_more_characters_in_json_than_there_is_room_for(character: str, count: int) -> None:
    part = shown(ends_of((character * count).encode(), 1000, piece=4096), 1000)
    assert len(json.dumps(part.text, ensure_ascii=False)) - 2 <= 1000
    assert part.text.startswith(character)
    assert part.text.endswith(character)


def test_the_beginning_and_the_end_are_shown_with_how_much_is_missing_between_them() -> None:
    data = b"".join(b"%d\n" % number for number in range(10_000))
    part = shown(ends_of(data, 1000, piece=4096), 1000)
    head, gap, tail = part.text.partition(f"\n[… {part.end - part.begin} of {len(data)} bytes are left out here …]\n")
    assert gap
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert (len(head), len(tail)) == (part.begin, len(data) - part.end)
    assert part.text.endswith("9999\n")


@pytest.mark.parametrize("most", range(1000, 1013))
def test_no_character_is_cut_in_two(most: int) -> None:
    data = ("aä中😀" * 1000).encode()
    part = shown(ends_of(data, most), most)
    assert "\N{REPLACEMENT CHARACTER}" not in part.text
    assert data[: part.begin].decode() == part.text.partition("\n[…")[0]
    assert data[part.end :].decode() == part.text.rpartition("…]\n")[2]


def test_what_is_no_text_is_cut_at_the_bytes_that_it_was() -> None:
    data = random.Random(1).randbytes(50_000)
    part = shown(ends_of(data, 1000), 1000)
    head, size = beginning(data, 100)
    assert data[:size].decode("utf-8", "replace") == head
    tail, size = ending(data, 100)
    assert data[-size:].decode("utf-8", "replace") == tail
    assert 0 < part.begin < part.end < len(data)


def test_it_does_not_matter_in_which_pieces_a_stream_comes() -> None:
    chance = random.Random(2)
    for _ in range(50):
        data = "".join(chance.choice("aä中😀\n") for _ in range(chance.randrange(3000))).encode()
        whole = shown(ends_of(data, 1000, piece=len(data) or 1), 1000)
        assert shown(ends_of(data, 1000, piece=chance.randrange(1, 5000)), 1000) == whole


def test_what_is_held_of_a_stream_is_bounded() -> None:
    ends = ends_of(b"x" * 5_000_000, 1000, piece=65536)
    assert ends.total == 5_000_000
    assert len(ends.first) + len(ends.last) < 3 * needed_bytes(1000)


def test_each_text_gets_what_it_wants_or_an_equal_share_of_what_others_leave() -> None:
    assert shares([10, 20], 100) == [10, 20]
    assert shares([10, 500], 100) == [10, 90]
    assert shares([500, 10], 100) == [90, 10]
    assert shares([500, 500], 100) == [50, 50]
    assert shares([500, 0, 500, 20], 100) == [40, 0, 40, 20]
    assert shares([], 100) == []


def test_of_a_list_the_first_that_fit_are_shown_and_always_one() -> None:
    assert fitting(["aa", "bb", "cc"], 4, len) == ["aa", "bb"]
    assert fitting(["aaaaaaa", "b"], 4, len) == ["aaaaaaa"]
    assert fitting([], 4, len) == []


def test_a_text_of_somebody_else_s_is_short_whatever_is_in_it() -> None:
    assert shorter("plain", 1000) == "plain"
    assert in_json(shorter("\x00\udcff" * 10_000, 1000)) <= 1000


def test_the_operator_s_bound_is_no_less_than_what_an_answer_has_anyway() -> None:
    assert ServerSettings(data_dir=Path("/")).max_mcp_chars == MOST_CHARS
    assert mcp_chars(str(DEFAULT_CHARS)) == DEFAULT_CHARS
    for wrong in (str(DEFAULT_CHARS - 1), "1000001", "-1"):
        with pytest.raises(ValueError, match="25000 to 1000000"):
            mcp_chars(wrong)
