"""A program's output as text that any number of readers follow, each from its own offset and at its own speed.

It is kept once, as UTF-8, up to a bound. A reader that is slow gets larger pieces; it costs no memory and slows nobody.
"""

from __future__ import annotations

import codecs

__all__ = ["PIECE_BYTES", "Output"]

PIECE_BYTES = 64 * 1024


class Output:
    """One stream. Bytes that are not UTF-8 are replaced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False
        self.is_cut = False
        self._kept = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, data: bytes, *, room: int, final: bool = False) -> None:
        """Keep what there is room for; after the first loss nothing more, so that no gap looks like none."""
        new = self._decoder.decode(data, final=final).encode()
        if self.is_cut or not new:
            return
        self.is_cut = len(new) > room
        self._kept += new[: _whole(new, room)]

    def close(self, *, room: int) -> None:
        """Nothing more comes; once is enough."""
        if not self.is_closed:
            self.add(b"", room=room, final=True)
            self.is_closed = True

    def piece(self, offset: int) -> bytes:
        """From an offset on, at most `PIECE_BYTES` and only whole characters."""
        return bytes(self._kept[offset : _whole(self._kept, offset + PIECE_BYTES)])

    def text(self) -> str:
        return self._kept.decode()


def _whole(data: bytes | bytearray, end: int) -> int:
    """The last place at or before `end` where no character is cut in two."""
    end = max(0, min(end, len(data)))
    while 0 < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end
