"""The frame codec: a fixed header, an optional absolute offset, a length-checked payload.

    stream u32 | kind u8 | channel u8 | length u32 | [offset u64] | payload

`length` counts everything after the header. Guarantees: nothing longer than MAX_FRAME is ever buffered, an unknown
kind or an impossible length is a `ProtocolError` before any payload is read, and a payload is copied exactly once.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    Frame = Tuple[int, int, int, int, bytes]
    """stream, kind, channel, offset, payload"""

__all__ = [
    "ACK",
    "CANCEL",
    "DATA",
    "END",
    "EOF",
    "EVENT",
    "HELLO",
    "MAX_DATA",
    "MAX_FRAME",
    "OPEN",
    "RESUME",
    "Decoder",
    "ProtocolError",
    "data_head",
    "frame",
    "offset_frame",
]

HELLO, OPEN, EVENT, END, CANCEL, DATA, EOF, ACK, RESUME = range(1, 10)

MAX_FRAME = 1024 * 1024
MAX_DATA = 256 * 1024
"""The largest piece of content that we put in one DATA frame; any peer may send up to MAX_FRAME."""

_HEADER = struct.Struct(">IBBI")
_OFFSET = struct.Struct(">Q")
_DATA_HEAD = struct.Struct(">IBBIQ")
_WITH_OFFSET = frozenset((DATA, EOF, ACK, RESUME))
_EMPTY = frozenset((EOF, ACK, RESUME, CANCEL))
_MAX_OFFSET = 1 << 62
_QUIET_BUFFER = 64 * 1024


class ProtocolError(Exception):
    """The peer said something that the protocol does not allow; the link cannot be used any more."""


def frame(stream: int, kind: int, payload: bytes = b"") -> bytes:
    """A control frame."""
    return _HEADER.pack(stream, kind, 0, len(payload)) + payload


def offset_frame(stream: int, kind: int, channel: int, offset: int) -> bytes:
    """An EOF, ACK or RESUME frame."""
    return _DATA_HEAD.pack(stream, kind, channel, 8, offset)


def data_head(stream: int, channel: int, offset: int, length: int) -> bytes:
    """The part of a DATA frame before its `length` bytes of content."""
    return _DATA_HEAD.pack(stream, DATA, channel, 8 + length, offset)


class Decoder:
    """Turns bytes into frames; `space` and `filled` let a driver receive straight into the decoder's buffer.

    The buffer is small while the link is quiet and grows to twice the frame at hand, so a thousand idle links cost
    little and a busy one moves few bytes.
    """

    __slots__ = ("_buffer", "_end", "_last", "_start", "_view")

    def __init__(self) -> None:
        self._start = self._end = self._last = 0
        self._allot(_QUIET_BUFFER, b"")

    def space(self) -> memoryview:
        """Where the next received bytes go; never empty."""
        if self._start == self._end:
            if len(self._buffer) > _QUIET_BUFFER and self._last < _QUIET_BUFFER // 8:
                self._allot(_QUIET_BUFFER, b"")
            self._start = self._end = 0
        elif self._start + self._frame_size() > len(self._buffer):
            self._make_room(self._frame_size())
        return self._view[self._end :]

    def _frame_size(self) -> int:
        """The size of the frame that is incomplete at the end of the buffer, as far as it is known."""
        if self._end - self._start < _HEADER.size:
            return _HEADER.size
        # Bounded here too: a refused header is still in the buffer, and its length must not become an allocation.
        return _HEADER.size + min(MAX_FRAME, int(_HEADER.unpack_from(self._buffer, self._start)[3]))

    def _make_room(self, size: int) -> None:
        kept = bytes(self._view[self._start : self._end])
        if size > len(self._buffer) // 2:
            self._allot(2 * size, kept)
        else:
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)

    def _allot(self, size: int, kept: bytes) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._view[: len(kept)] = kept
        self._start, self._end = 0, len(kept)

    def filled(self, count: int) -> List[Frame]:
        """Account for `count` bytes received into `space`; the frames that are now complete.

        Raises:
            ProtocolError: the bytes are not ours.
        """
        self._last = count
        self._end += count
        frames: List[Frame] = []
        while self._end - self._start >= _HEADER.size:
            stream, kind, channel, length = _HEADER.unpack_from(self._buffer, self._start)
            _check_header(kind, length)
            body = self._start + _HEADER.size
            if self._end < body + length:
                break
            frames.append(self._take(stream, kind, channel, body, body + length))
            self._start = body + length
        return frames

    def feed(self, data: bytes) -> List[Frame]:
        """Receive `data`, however it was split."""
        frames: List[Frame] = []
        rest = memoryview(data)
        while len(rest):
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            frames += self.filled(count)
            rest = rest[count:]
        return frames

    def _take(self, stream: int, kind: int, channel: int, body: int, end: int) -> Frame:
        if kind not in _WITH_OFFSET:
            return stream, kind, channel, 0, bytes(self._view[body:end])
        (offset,) = _OFFSET.unpack_from(self._buffer, body)
        if offset > _MAX_OFFSET:
            raise ProtocolError("an offset is beyond any stream")
        return stream, kind, channel, offset, bytes(self._view[body + 8 : end])


def _check_header(kind: int, length: int) -> None:
    if not HELLO <= kind <= RESUME:
        raise ProtocolError("unknown frame kind %d" % kind)
    if length > MAX_FRAME:
        raise ProtocolError("a frame of %d bytes exceeds the limit of %d" % (length, MAX_FRAME))
    if kind in _WITH_OFFSET and length < 8:
        raise ProtocolError("a frame of kind %d lacks its offset" % kind)
    if kind in _EMPTY and length != (8 if kind in _WITH_OFFSET else 0):
        raise ProtocolError("a frame of kind %d carries a payload" % kind)
