"""A file's bytes as what they are: text, a picture, a sound, or something else. Pure: names and bytes in, kinds out."""

from __future__ import annotations

import codecs
import mimetypes
import re
from dataclasses import dataclass

__all__ = ["BYTES", "CHAR_BYTES", "TEXT", "Kind", "kind_of", "mime_of", "text_of"]

PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
"""What models can look at, by how it begins: a name may lie."""
SOUNDS = (
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "audio/wav"),
    (re.compile(rb"OggS"), "audio/ogg"),
    (re.compile(rb"fLaC"), "audio/flac"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "audio/mpeg"),
)
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text has, in whatever encoding of one byte per character."""

ALSO = {".md": "text/markdown", ".yaml": "application/yaml", ".yml": "application/yaml", ".toml": "application/toml"}
TEXT = "text/plain"
BYTES = "application/octet-stream"
CHAR_BYTES = 4
"""Of one character, at most: whoever reads so many at a time gets on."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`form` is text, image, audio or blob."""

    form: str
    mime: str


def kind_of(path: str, data: bytes) -> Kind:
    for form, known in (("image", PICTURES), ("audio", SOUNDS)):
        for begins, mime in known:
            if begins.match(data):
                return Kind(form, mime)
    if is_text(data):
        return Kind("text", mime_of(path, TEXT))
    mime = mime_of(path, BYTES)
    return Kind("blob", BYTES if mime.startswith("text/") else mime)


def mime_of(path: str, otherwise: str) -> str:
    """By its name."""
    suffix = f".{path.rpartition('.')[2].lower()}"
    return ALSO.get(suffix) or mimetypes.guess_type(f"x{suffix}")[0] or otherwise


def is_text(data: bytes) -> bool:
    """UTF-8 that may be cut in a character at its end, or some older encoding without anything that only bytes have."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return CONTROLS.search(data) is None
    return b"\x00" not in data


def text_of(data: bytes, *, is_whole: bool) -> tuple[str, int]:
    """The text, and how many bytes of it: a character that the end cuts in two is left for the next part."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_whole)
    return text, len(data) - len(decoder.getstate()[0])
