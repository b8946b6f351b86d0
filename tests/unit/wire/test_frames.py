"""The codec: any frames, any split, and nothing but ours."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.wire import frames
from k8e.wire.frames import Decoder, ProtocolError

OFFSETS = st.integers(0, 1 << 62)
STREAMS = st.integers(0, (1 << 32) - 1)
CHANNELS = st.integers(0, 255)

control = st.builds(
    lambda stream, kind, payload: (frames.frame(stream, kind, payload), (stream, kind, 0, 0, payload)),
    STREAMS,
    st.sampled_from([frames.HELLO, frames.OPEN, frames.EVENT, frames.END]),
    st.binary(max_size=300),
)
marks = st.builds(
    lambda stream, kind, channel, offset: (
        frames.offset_frame(stream, kind, channel, offset),
        (stream, kind, channel, offset, b""),
    ),
    STREAMS,
    st.sampled_from([frames.EOF, frames.ACK, frames.RESUME]),
    CHANNELS,
    OFFSETS,
)
data = st.builds(
    lambda stream, channel, offset, payload: (
        frames.data_head(stream, channel, offset, len(payload)) + payload,
        (stream, frames.DATA, channel, offset, payload),
    ),
    STREAMS,
    CHANNELS,
    OFFSETS,
    st.binary(max_size=2000),
)


def split(blob: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(blob), *(cut % (len(blob) + 1) for cut in cuts)})
    return [blob[start:end] for start, end in itertools.pairwise(places)]


@given(st.lists(st.one_of(control, marks, data), max_size=20), st.lists(st.integers(0, 1 << 20), max_size=20))
def test_frames_survive_any_split(sent: list[tuple[bytes, tuple[int, int, int, int, bytes]]], cuts: list[int]) -> None:
    decoder = Decoder()
    received = [frame for piece in split(b"".join(blob for blob, _ in sent), cuts) for frame in decoder.feed(piece)]
    assert received == [frame for _, frame in sent]


def test_large_frames_among_small_ones_come_out_whole() -> None:
    decoder = Decoder()
    sizes = [0, 1, 70_000, 3, frames.MAX_FRAME - 8, 5, 200_000, 0]
    for _ in range(3):
        blob = b"".join(frames.data_head(1, 1, 0, size) + bytes([size % 251]) * size for size in sizes)
        got = [frame for start in range(0, len(blob), 65_521) for frame in decoder.feed(blob[start : start + 65_521])]
        assert [len(frame[4]) for frame in got] == sizes
        assert all(frame[4] == bytes([size % 251]) * size for frame, size in zip(got, sizes, strict=True))


@pytest.mark.parametrize(
    "blob",
    [
        struct.pack(">IBBI", 1, 0, 0, 0),
        struct.pack(">IBBI", 1, 10, 0, 0),
        struct.pack(">IBBI", 1, 255, 0, 0),
        struct.pack(">IBBI", 1, frames.DATA, 0, frames.MAX_FRAME + 1),
        struct.pack(">IBBI", 1, frames.EVENT, 0, 0xFFFFFFFF),
        struct.pack(">IBBI", 1, frames.DATA, 0, 7),
        struct.pack(">IBBI", 1, frames.ACK, 0, 9),
        struct.pack(">IBBI", 1, frames.CANCEL, 0, 1),
        struct.pack(">IBBIQ", 1, frames.ACK, 0, 8, 1 << 63),
    ],
)
def test_what_is_not_a_frame_is_refused_at_its_header(blob: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(blob)


def test_a_quiet_decoder_gives_its_memory_back() -> None:
    decoder = Decoder()
    decoder.feed(frames.data_head(1, 1, 0, 500_000) + b"x" * 500_000)
    for _ in range(2):
        decoder.feed(frames.offset_frame(1, frames.ACK, 1, 0))
    assert len(decoder.space()) <= 64 * 1024
