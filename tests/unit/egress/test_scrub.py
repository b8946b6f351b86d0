"""Scrubbing: a value never comes through, however the stream is cut or packed, and everything else does."""

from __future__ import annotations

import base64
import gzip
import json
import time
import urllib.parse
import zlib
from collections.abc import Iterable
from random import Random

import brotli  # type: ignore[import-untyped]  # the library ships no types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress.scrub import Scrubber, UnknownEncoding, decoder, disguises
from k8e.egress.watch import Watch

VALUE = b"sk-live/a+b&c=d 0123456789"
MASK = b"k8e_placeholder_x"


def scrub(pieces: Iterable[bytes], replacements: dict[bytes, bytes]) -> bytes:
    scrubber = Scrubber(replacements)
    return b"".join([*map(scrubber.feed, pieces), scrubber.release()])


@given(st.data())
def test_however_a_stream_is_cut_the_result_is_that_of_the_whole(data: st.DataObject) -> None:
    alphabet = st.sampled_from(b"ab")
    values = data.draw(st.lists(st.lists(alphabet, min_size=1, max_size=5).map(bytes), min_size=1, max_size=3))
    text = bytes(data.draw(st.lists(alphabet, max_size=40)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    replacements = {value: b"#" * len(value) for value in values}
    whole = scrub([text], replacements)
    assert scrub(pieces, replacements) == whole
    assert len(whole) == len(text)
    assert not any(value in whole for value in values)


def test_many_long_values_leave_the_loop_to_others() -> None:
    random = Random(1)
    values = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=4000)).encode() for _ in range(32)]
    scrubber = Scrubber({form: mask for value in values for form, mask in disguises(value, MASK).items()})
    pieces = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=16_384)).encode() for _ in range(5)]
    took_s = []
    for _ in range(3):  # the least of them counts: into the others the collection of all tests' garbage may fall
        began = time.thread_time()
        assert b"".join([*map(scrubber.feed, pieces), scrubber.release()]) == b"".join(pieces)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.5, "a regular expression of all of them takes seconds"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_what_is_not_the_value_is_left_alone(before: bytes, after: bytes) -> None:
    text = before.replace(VALUE, b"") + b"|" + after.replace(VALUE, b"")
    assert scrub([text], {VALUE: MASK}) == text


@given(st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_how_much_is_held_back_does_not_depend_on_what_it_is(pieces: list[bytes], data: st.DataObject) -> None:
    """Otherwise a program that has its own words sent back could guess a value letter by letter."""
    guess, value = data.draw(st.integers(0, 5)), b"secret"
    tried, other = Scrubber({value: b"######"}), Scrubber({value: b"######"})
    for piece in pieces:
        clean = piece.replace(b"s", b"-")
        assert len(tried.feed(clean + value[:guess])) == len(other.feed(clean + b"x" * guess))
    assert len(tried.release()) == len(other.release())


def test_what_is_let_go_meanwhile_is_no_value_and_its_rest_does_not_come() -> None:
    scrubber = Scrubber({b"secret": b"######"})
    assert scrubber.feed(b"data: one\n\n") == b"data: "
    assert scrubber.release() == b"one\n\n"
    assert not scrubber.is_holding
    assert scrubber.feed(b"a sec") + scrubber.release() == b"a sec"
    assert scrubber.feed(b"ret, a secret, ") + scrubber.release() == b"###, a ######, "
    assert scrubber.feed(b"sec") + scrubber.release() + scrubber.feed(b"ond") + scrubber.release() == b"second"


def test_the_longer_of_two_values_that_begin_alike_wins_even_when_it_comes_later() -> None:
    assert scrub([b"x abc", b"def y"], {b"abc": b"###", b"abcdef": b"######"}) == b"x ###### y"


@pytest.mark.parametrize(
    "echo",
    [
        VALUE,
        b"Bearer " + VALUE,
        json.dumps({"token": VALUE.decode()}).encode(),
        urllib.parse.quote(VALUE, safe="").encode(),
        urllib.parse.quote_plus(VALUE).encode(),
    ],
    ids=["plain", "bearer", "json", "percent", "form"],
)
def test_the_ways_in_which_servers_echo_a_value_are_known(echo: bytes) -> None:
    scrubbed = scrub([echo], disguises(VALUE, MASK))
    assert len(scrubbed) == len(echo)
    assert MASK[: len(VALUE)] in scrubbed
    assert b"0123456789" not in scrubbed


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("user", [b"", b"a", b"ab", b"user:"])
@pytest.mark.parametrize("tail", [b"", b"x", b"xy"])
def test_a_value_within_base64_is_found_at_every_offset(encode: object, user: bytes, tail: bytes) -> None:
    assert callable(encode)
    scrubbed = scrub([encode(user + VALUE + tail)], disguises(VALUE, MASK))
    plain = base64.b64decode(scrubbed.replace(b"*", b"A").replace(b"_", b"A").replace(b"-", b"A") + b"==")
    assert b"0123456789"[:6] not in plain
    assert MASK in scrubbed


def test_a_watch_sees_a_word_across_pieces() -> None:
    watch = Watch([b"placeholder", b"x"])
    assert not watch.sees(b"...place")
    assert watch.sees(b"holder")
    assert not Watch([]).sees(b"anything")


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"a" * 1000 + VALUE)),
        ("X-GZip", gzip.compress(b"a" * 1000) + gzip.compress(VALUE)),
        ("br", brotli.compress(b"a" * 1000 + VALUE)),
    ],
    ids=["gzip", "two gzips in a row", "br"],
)
def test_packed_bodies_are_unpacked_whatever_the_size_of_pieces(encoding: str, packed: bytes, size: int) -> None:
    undo = decoder([encoding])
    assert undo is not None
    assert undo.is_complete()
    pieces = [piece for start in range(0, len(packed), size) for piece in undo.feed(packed[start : start + size])]
    assert b"".join(pieces) == b"a" * 1000 + VALUE
    assert undo.is_complete()


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("br", brotli.compress)])
def test_a_bomb_comes_in_small_pieces(encoding: str, pack: object) -> None:
    assert callable(pack)
    undo = decoder([encoding])
    assert undo is not None
    sizes = [len(piece) for piece in undo.feed(pack(b"a" * 50_000_000))]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= 1024 * 1024


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("br", brotli.compress)])
def test_a_packed_body_that_was_cut_off_is_not_complete(encoding: str, pack: object) -> None:
    assert callable(pack)
    undo = decoder([encoding])
    assert undo is not None
    list(undo.feed(pack(b"hello hello hello" * 100)[:-3]))
    assert not undo.is_complete()


@pytest.mark.parametrize(
    "encodings", [["zstd"], ["deflate"], ["gzip", "br"], ["compress"], ["gzip "] * 2], ids=lambda each: "+".join(each)
)
def test_what_cannot_be_looked_into_is_refused(encodings: list[str]) -> None:
    with pytest.raises(UnknownEncoding):
        decoder(encodings)
    assert decoder(["identity", " "]) is None


@pytest.mark.parametrize("encoding", ["gzip", "br"])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: str) -> None:
    undo = decoder([encoding])
    assert undo is not None
    with pytest.raises(UnknownEncoding):
        list(undo.feed(zlib.compress(b"neither of them, but long enough to tell" * 10)))
