"""Bodies are unpacked in small pieces, and what is not whole or not known is told."""

from __future__ import annotations

import gzip
import zlib

import brotli  # type: ignore[import-untyped]  # the library ships no types
import pytest

from k8e.egress.content_encoding import UnknownEncoding, decoder

VALUE = b"sk-live/a+b&c=d 0123456789"


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
