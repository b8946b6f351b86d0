"""Values out of streams: every occurrence is replaced by text of the same length, however the stream is cut.

The same length, so that Content-Length, ranges and the frames of a WebSocket stay true. The last bytes wait for what comes
next, as many as a value may have; whoever feeds lets go of them when nothing comes for a moment, so what is live stays
live. Nothing here does I/O.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import brotli  # type: ignore[import-untyped]  # the library ships no types

__all__ = ["Decoder", "Scrubber", "UnknownEncoding", "decoder", "disguises", "stand_in"]

_FILL: Final = b"*"
_PIECE_BYTES: Final = 256 * 1024
# The most that one step of decompression may yield: a bomb then costs time, which is its sender's, not our memory.


class UnknownEncoding(ValueError):
    """A body in an encoding that we cannot look into."""


def disguises(value: bytes, mask: bytes) -> dict[bytes, bytes]:
    """The value as servers echo it (plain, in JSON, in a URL, within base64), each with a stand-in of its length."""
    forms = {value, urllib.parse.quote(value, safe="").encode(), urllib.parse.quote_plus(value).encode()}
    forms.add(json.dumps(value.decode("utf-8", "surrogateescape"))[1:-1].encode())
    forms |= {core for offset in range(3) for core in _base64_cores(value, offset)}
    return {form: stand_in(mask, len(form)) for form in forms}


def _base64_cores(value: bytes, offset: int) -> Iterator[bytes]:
    """The characters that stand for the value and nothing beside it, `offset` bytes into a group of three.

    Whatever is encoded together with it, such as the user before a password, these characters are the same.
    """
    whole = base64.b64encode(bytes(offset) + value).rstrip(b"=")
    last = len(whole) - (1 if (offset + len(value)) % 3 else 0)
    core = whole[(0, 2, 3)[offset] : last]
    yield core
    yield core.translate(bytes.maketrans(b"+/", b"-_"))


def stand_in(mask: bytes, length: int) -> bytes:
    """The mask, cut or filled up to a length."""
    return mask[:length].ljust(length, _FILL)


class Scrubber:
    """Replaces in one stream. Feed pieces, then `release`; what comes out has the length of what went in.

    How much waits does not depend on what it is: if only the beginnings of values waited, whoever chooses what comes could
    try them out.
    """

    def __init__(self, replacements: Mapping[bytes, bytes]) -> None:
        # Longest first: where two values begin alike the longer one must win.
        self._values = sorted((value for value in replacements if value), key=len, reverse=True)
        self._replacements = dict(replacements)
        self._overlap = max(map(len, self._values), default=1) - 1
        self._past = b""
        """What has gone out, as far as a value may have begun in it."""
        self._held = b""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        return self._pass_on(self._held + data, self._overlap)

    def release(self) -> bytes:
        """What was held back, because nothing more comes for now; the rest of a value that began in it is replaced later."""
        return self._pass_on(self._held, 0)

    def _pass_on(self, fresh: bytes, keep: int) -> bytes:
        text, begin = self._past + fresh, len(self._past)
        end = max(begin, len(text) - keep)
        done: list[bytes] = []
        at, clear = begin, 0
        for start, value in self._found(text):
            if start >= end:
                break
            done += (text[at:start], self._replacements[value][max(0, begin - start) :])
            clear = start + len(value)
            at = max(at, clear)
        end = max(end, at)
        done.append(text[at:end])
        self._past, self._held = text[max(clear, end - self._overlap) : end], text[end:]
        return b"".join(done)

    def whole(self, data: bytes) -> bytes:
        """A text that is complete, such as a header."""
        done: list[bytes] = []
        at = 0
        for start, value in self._found(data):
            done += (data[at:start], self._replacements[value])
            at = start + len(value)
        return b"".join((*done, data[at:]))

    def _found(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Where which value is, from left to right, none within another.

        One search for each value: an expression of many long ones takes the loop's time from everybody.
        """
        nearest = {value: start for value in self._values if (start := data.find(value)) >= 0}
        while nearest:
            value = min(nearest, key=nearest.__getitem__)  # of several at one place the first, which is the longest
            start = nearest[value]
            yield start, value
            for other in [other for other, where in nearest.items() if where < start + len(value)]:
                nearest[other] = data.find(other, start + len(value))
                if nearest[other] < 0:
                    del nearest[other]


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
