"""What a file is, by its bytes and its name."""

from __future__ import annotations

import pytest

from k8e.mcp.contents import Kind, kind_of, text_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    ("path", "data", "kind"),
    [
        ("plot.png", PNG, Kind("image", "image/png")),
        ("plot.txt", PNG, Kind("image", "image/png")),
        ("a.jpg", b"\xff\xd8\xff\xe0rest", Kind("image", "image/jpeg")),
        ("a.gif", b"GIF89a....", Kind("image", "image/gif")),
        ("a.webp", b"RIFF\x01\x02\x03\x00WEBPVP8 ", Kind("image", "image/webp")),
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", Kind("text", "image/svg+xml")),
        ("a.wav", b"RIFF\x01\x02\x03\x00WAVEfmt ", Kind("audio", "audio/wav")),
        ("a.mp3", b"ID3\x04rest", Kind("audio", "audio/mpeg")),
        ("a.flac", b"fLaC\x00", Kind("audio", "audio/flac")),
        ("notes", b"plain", Kind("text", "text/plain")),
        ("empty", b"", Kind("text", "text/plain")),
        ("a.csv", b"a,b\n1,2\n", Kind("text", "text/csv")),
        ("a.json", b"{}", Kind("text", "application/json")),
        ("README.md", "ä".encode(), Kind("text", "text/markdown")),
        ("old.csv", "Stra\xdfe\n".encode("latin-1"), Kind("text", "text/csv")),
        ("a.txt", b"text with a \x00", Kind("blob", "application/octet-stream")),
        ("a.zip", b"PK\x03\x04\xff\xfe\x00", Kind("blob", "application/zip")),
        ("a.png", b"\x00\x01\xffnot a picture", Kind("blob", "image/png")),
    ],
)
def test_bytes_decide_and_the_name_helps(path: str, data: bytes, kind: Kind) -> None:
    assert kind_of(path, data) == kind


def test_a_character_that_is_cut_in_two_is_left_for_the_next_part() -> None:
    data = "aä".encode()
    assert text_of(data, is_whole=True) == ("aä", 3)
    assert text_of(data[:2], is_whole=False) == ("a", 1)
    assert text_of(data[:2], is_whole=True) == ("a\ufffd", 2)
    assert kind_of("a.txt", data[:2]).form == "text"
