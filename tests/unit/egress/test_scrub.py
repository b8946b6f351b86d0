"""Scrubbing: a value never comes through, however the stream is cut, and everything else does."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.scrub import Masked, Scrubber, in_pieces
from k8e.egress.spellings import SecretPattern
from k8e.egress.watch import Watch

VALUE = b"sk-live/a+b&c=d 0123456789"
MASK = b"k8e_placeholder_x"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def masked(*values: bytes, mask: bytes = b"#" * 99) -> list[Masked]:
    return [Masked(SecretPattern(value), mask) for value in values]


def scrub(pieces: Iterable[bytes], secrets: list[Masked]) -> bytes:
    scrubber = Scrubber(secrets)
    return b"".join([*map(scrubber.feed, pieces), scrubber.release()])


def cut(data: st.DataObject, text: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.data())
def test_however_a_stream_is_cut_the_result_is_that_of_the_whole(data: st.DataObject) -> None:
    letter = st.sampled_from([b"a", b"b", b"%61", b"\\u0062", b"\n"])
    value = st.lists(st.sampled_from([b"a", b"b"]), min_size=8, max_size=9).map(b"".join)
    values = data.draw(st.lists(value, min_size=1, max_size=2))
    text = b"".join(data.draw(st.lists(letter | value, max_size=40)))
    secrets = masked(*values)
    whole = scrub([text], secrets)
    assert scrub(cut(data, text), secrets) == whole
    assert len(whole) == len(text)
    assert not any(value in whole for value in values)


@pytest.mark.parametrize("unit", [b"\\", b"%5C", b"&#92;", b"\\u005c", b"%255C"])
@pytest.mark.parametrize("count", [51, 52, 53, 54, 3001, 3002, 3003, 3004])
def test_a_long_run_of_escapes_before_it_does_not_shift_what_follows(unit: bytes, count: int) -> None:
    """A program inside may choose what a host sends back before the value."""
    value = b"7Qz/k3Lm+9pWx2/Rt5"
    secrets = masked(value)
    text = b" " + unit * (2 * count) + value.replace(b"/", unit + b"/") + b" " * 900
    masks = Scrubber(secrets).whole(text).count(b"#")
    assert masks >= len(value)
    for size in (64, 65, 777, 8192):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert scrub(pieces, secrets).replace(unit, b"").count(b"#") >= len(value)


def test_many_long_values_leave_the_loop_to_others() -> None:
    random = Random(1)
    secrets = masked(*("".join(random.choices(LETTERS, k=4000)).encode() for _ in range(32)))
    pieces = ["".join(random.choices(LETTERS, k=16_384)).encode() for _ in range(5)]
    took_s = []
    for _ in range(3):  # the least of them counts: into the others the collection of all tests' garbage may fall
        began = time.thread_time()
        assert scrub(pieces, secrets) == b"".join(pieces)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.5, "searching for each in turn takes milliseconds"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_what_is_not_the_value_is_left_alone(before: bytes, after: bytes) -> None:
    text = before.replace(VALUE, b"") + b"|" + after.replace(VALUE, b"")
    assert scrub([text], masked(VALUE)) == text


@given(st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_how_much_is_held_back_does_not_depend_on_what_it_is(pieces: list[bytes], data: st.DataObject) -> None:
    """Otherwise a program that has its own words sent back could guess a value letter by letter."""
    guess, value = data.draw(st.integers(0, 8)), b"a-secret!"
    tried, other = (Scrubber(masked(value)) for _ in range(2))
    for piece in pieces:
        clean = piece.replace(b"a", b"-")
        assert len(tried.feed(clean + value[:guess])) == len(other.feed(clean + b"x" * guess))
    assert len(tried.release()) == len(other.release())


def test_what_is_let_go_meanwhile_is_no_value_and_its_rest_does_not_come() -> None:
    scrubber = Scrubber(masked(b"a-secret"))
    assert scrubber.feed(b"data: " + b"one " * 25) == b"data: one o"
    assert scrubber.release() == b"ne " + b"one " * 23
    assert not scrubber.is_holding
    assert scrubber.feed(b"it is a-sec") + scrubber.release() == b"it is a-sec"
    assert scrubber.feed(b"ret, a-secret, ") + scrubber.release() == b"###, ########, "
    assert scrubber.feed(b"a-sec") + scrubber.release() + scrubber.feed(b"ond") + scrubber.release() == b"a-second"


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
def test_what_ends_in_an_empty_line_does_not_wait(line: bytes) -> None:
    """As each event of a stream of them does: a model's words are shown while it writes them."""
    scrubber = Scrubber(masked(VALUE))
    event = b"data: a word" + line + line
    assert scrubber.feed(event) == event
    assert scrubber.feed(b"data: " + VALUE + line + line + b"data: " + VALUE[:-1]).count(b"#") == len(VALUE)
    assert scrubber.feed(VALUE[-1:] + line + line) == b"data: " + b"#" * len(VALUE) + line + line


def test_the_longer_of_two_values_that_begin_alike_wins_even_when_it_comes_later() -> None:
    secrets = [*masked(b"abcdefgh", mask=b"-" * 99), *masked(b"abcdefghijkl")]
    assert scrub([b"x abcdefgh", b"ijkl y"], secrets) == b"x ############ y"


def test_the_stand_in_has_the_length_of_the_spelling() -> None:
    secrets = masked(b"a/b/c/d/e", mask=MASK)
    assert scrub([b'"a\\/b\\/c\\/d\\/e"'], secrets) == b'"k8e_placehold"'
    assert scrub([b"a%2Fb%2Fc%2fd%2fe!"], secrets) == b"k8e_placeholder_x!"


def test_large_data_comes_in_pieces_that_do_not_keep_the_loop() -> None:
    data = bytes(range(256)) * 400
    pieces = list(in_pieces(data))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 16_384


def test_a_watch_sees_a_word_across_pieces() -> None:
    watch = Watch([b"placeholder", b"x"])
    assert not watch.sees(b"...place")
    assert watch.sees(b"holder")
    assert not Watch([]).sees(b"anything")
