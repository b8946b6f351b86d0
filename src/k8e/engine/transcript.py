"""What was run in a session and what it printed: a bounded text file that can be read on from any offset.

Offsets count bytes since the session began and never change, even when old text has been dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Transcript", "TranscriptPage"]

_KEEP_BYTES = 4 * 1024 * 1024
_PAGE_BYTES = 64 * 1024
_PAGE_MAX_BYTES = 1024 * 1024
_PER_STREAM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptPage:
    output: str
    offset: int
    next_offset: int
    truncated_before: bool
    eof: bool
    """True when nothing more is there now."""


class Transcript:
    """One file; its first line holds the offset of the first byte that is still kept."""

    PER_STREAM_BYTES = _PER_STREAM_BYTES

    def __init__(self, path: Path, *, keep_bytes: int = _KEEP_BYTES) -> None:
        self._path = path
        self._keep = keep_bytes

    def append(self, data: bytes) -> None:
        """Add text; the file never grows past twice the bound."""
        if not data:
            return
        if not self._path.exists():
            self._path.write_bytes(b"0\n")
        with self._path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if size > 2 * self._keep:
            self._drop_oldest()

    def read(self, offset: int, limit: int = 0) -> TranscriptPage:
        """Text from `offset` on, cut after a line where possible."""
        start, body = self._load()
        limit = min(limit if limit > 0 else _PAGE_BYTES, _PAGE_MAX_BYTES)
        begin = min(max(offset, start), start + len(body))
        piece = body[begin - start : begin - start + limit]
        rest = start + len(body) - begin - len(piece)
        if rest and (cut := piece.rfind(b"\n")) >= 0:
            piece = piece[: cut + 1]
        end = begin + len(piece)
        return TranscriptPage(
            output=piece.decode("utf-8", "replace"),
            offset=begin,
            next_offset=end,
            truncated_before=offset < start,
            eof=end == start + len(body),
        )

    def _load(self) -> tuple[int, bytes]:
        try:
            head, _, body = self._path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return 0, b""
        return int(head), body

    def _drop_oldest(self) -> None:
        start, body = self._load()
        cut = body.find(b"\n", len(body) - self._keep) + 1 or len(body) - self._keep
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"%d\n" % (start + cut) + body[cut:])
        fresh.replace(self._path)
