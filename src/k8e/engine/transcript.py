"""What was run in a session and what it printed: a bounded text file that can be read on from any offset.

Offsets count bytes since the session began and never change, even when old text has been dropped. Everything here blocks, and
is called from one thread at a time: text that a full disk cuts short is taken back before anybody could have read it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Transcript", "TranscriptPage"]

_log = logging.getLogger(__name__)

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
        """Add text; the file never grows past twice the bound.

        What cannot be written, on a full disk, is left out whole: no command fails for want of its transcript.
        """
        if not data:
            return
        try:
            if self._appended(data) > 2 * self._keep:
                self._drop_oldest()
        except OSError as error:
            _log.warning("cannot keep a transcript", extra={"file": str(self._path), "reason": str(error)})

    def _appended(self, data: bytes) -> int:
        """The file's size with it. Raises: OSError, and then it is as it was."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            line = data if size else b"0\n" + data
            try:
                _write(file.fileno(), line)
            except OSError:
                file.truncate(size)
                raise
            return size + len(line)

    def read(self, offset: int, limit: int = 0) -> TranscriptPage:
        """Text from `offset` on, cut after a line where possible."""
        start, size, piece = 0, 0, b""
        limit = min(limit if limit > 0 else _PAGE_BYTES, _PAGE_MAX_BYTES)
        begin = 0
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            head = file.readline()
            start, size = int(head or 0), os.fstat(file.fileno()).st_size - len(head)
            begin = min(max(offset, start), start + size)
            file.seek(len(head) + begin - start)
            piece = file.read(limit)
        if begin + len(piece) < start + size and (cut := piece.rfind(b"\n")) >= 0:
            piece = piece[: cut + 1]
        end = begin + len(piece)
        return TranscriptPage(
            output=piece.decode("utf-8", "replace"),
            offset=begin,
            next_offset=end,
            truncated_before=offset < start,
            eof=end == start + size,
        )

    def _load(self) -> tuple[int, bytes]:
        try:
            head, _, body = self._path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return 0, b""
        return int(head or 0), body

    def _drop_oldest(self) -> None:
        start, body = self._load()
        cut = body.find(b"\n", len(body) - self._keep) + 1 or len(body) - self._keep
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(b"%d\n" % (start + cut) + body[cut:])
            fresh.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise


def _write(descriptor: int, data: bytes) -> None:
    """All of it, or an error: a disk that fills up takes a part first."""
    while data:
        data = data[os.write(descriptor, data) :]
