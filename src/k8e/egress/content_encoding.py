"""Undoes the encodings of HTTP bodies (`Content-Encoding`) in pieces of bounded size. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import brotli  # type: ignore[import-untyped]  # the library ships no types

__all__ = ["Decoder", "UnknownEncoding", "decoder"]

_PIECE_BYTES: Final = 256 * 1024
# The most that one step of decompression may yield: a bomb then costs time, which is its sender's, not our memory.


class UnknownEncoding(ValueError):
    """A body in an encoding that we cannot look into."""


class Decoder(Protocol):
    """Undoes a content encoding, in pieces of bounded size."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises: UnknownEncoding when the bytes are not of that encoding."""
        ...

    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        ...


def decoder(encodings: Iterable[str]) -> Decoder | None:
    """What undoes a `Content-Encoding`; None for identity. Raises: UnknownEncoding, also for several at once."""
    listed = [each for each in (text.strip().lower() for text in encodings) if each not in ("", "identity")]
    match listed:
        case []:
            return None
        case ["gzip" | "x-gzip"]:
            return _Gzip()
        case ["br"]:
            return _Brotli()
        case _:
            raise UnknownEncoding(", ".join(listed))


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._is_fresh = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            self._is_fresh = False
            try:
                piece = self._member.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise UnknownEncoding("gzip") from error
            if piece:
                yield piece
            data = self._member.unconsumed_tail
            if self._member.eof:
                # A gzip file may be several in a row.
                data = self._member.unused_data
                self._member = zlib.decompressobj(wbits=31)
                self._is_fresh = True

    def is_complete(self) -> bool:
        return self._is_fresh


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self._is_fresh = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._is_fresh = self._is_fresh and not data
        while True:
            try:
                piece = bytes(self._stream.process(data, output_buffer_limit=_PIECE_BYTES))
            except brotli.error as error:
                raise UnknownEncoding("br") from error
            data = b""
            if piece:
                yield piece
            # It says that it could take more input also while output is still waiting.
            if self._stream.is_finished() or not piece:
                return

    def is_complete(self) -> bool:
        return self._is_fresh or bool(self._stream.is_finished())
