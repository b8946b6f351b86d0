"""Transcripts: bounded, and readable on from any offset that was ever handed out."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.transcript import Transcript


def test_reading_on_from_next_offset_sees_every_byte_once(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    text = "".join(f"line {n}\n" for n in range(1000))
    transcript.append(text.encode())
    seen, at = "", 0
    while True:
        page = transcript.read(at, 100)
        seen, at = seen + page.output, page.next_offset
        assert page.output.endswith("\n")
        if page.eof:
            break
    assert seen == text


def test_an_empty_transcript_is_at_its_end(tmp_path: Path) -> None:
    page = Transcript(tmp_path / "t").read(0)
    assert (page.output, page.next_offset, page.eof, page.truncated_before) == ("", 0, True, False)


def test_old_text_is_dropped_and_said_to_be(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t", keep_bytes=1000)
    for n in range(500):
        transcript.append(f"line {n}\n".encode())
    page = transcript.read(0)
    assert page.truncated_before
    assert page.output.startswith("line ")
    assert transcript.read(page.offset).offset == page.offset
    assert (tmp_path / "t").stat().st_size < 3000


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_the_end_offset_counts_all_that_was_ever_written(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        transcript = Transcript(Path(directory) / "t", keep_bytes=500)
        for piece in pieces:
            transcript.append(piece)
        total = sum(map(len, pieces))
        assert transcript.read(total + 10).next_offset == total
