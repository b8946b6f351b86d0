"""Secrets out of streams: every echo is replaced by text of the same length, however the stream is cut.

The same length, so that Content-Length, ranges and the frames of a WebSocket stay true. The last bytes wait for what comes
next, as many as an echo may have; whoever feeds lets go of them when nothing comes for a moment, so what is live stays
live. What ends in an empty line, as each event of an event stream does, does not wait: an echo across one is not looked for.
Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from k8e.egress.spellings import FROM_THE_BEGINNING, Decoded, SecretPattern

__all__ = ["Masked", "Scrubber", "in_pieces", "stand_in"]

_FILL: Final = b"*"
_PIECE_BYTES: Final = 8 * 1024
_EMPTY_LINES: Final = (b"\n\n", b"\n\r\n")


class Masked(NamedTuple):
    """A secret, and what stands in its place."""

    pattern: SecretPattern
    mask: bytes


def stand_in(mask: bytes, length: int) -> bytes:
    """The mask, cut or filled up to a length."""
    return mask[:length].ljust(length, _FILL)


def in_pieces(data: bytes) -> Iterator[bytes]:
    """So small that none of them keeps the loop for long, whatever is in it."""
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


class Scrubber:
    """Replaces in one stream. Feed pieces, then `release`; what comes out has the length of what went in.

    How much waits does not depend on what it is: if only the beginnings of values waited, whoever chooses what comes could
    try them out.
    """

    def __init__(self, secrets: Sequence[Masked]) -> None:
        self._secrets = secrets
        self._overlap = max((each.pattern.most_bytes for each in secrets), default=1) - 1
        self._past = b""
        """What has gone out, as far as an echo may have begun in it."""
        self._held = b""
        self._starts: Sequence[int] = FROM_THE_BEGINNING
        """Where in the past each chain of decoding goes on: at the end of an escape, not in the middle of one."""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        return self._pass_on(self._held + data, self._overlap)

    def release(self) -> bytes:
        """What was held back, because nothing more comes for now; the rest of an echo that began in it is replaced later."""
        return self._pass_on(self._held, 0)

    def whole(self, data: bytes) -> bytes:
        """A text that is complete, such as a header."""
        done: list[bytes] = []
        at = 0
        for start, end, mask in self._found(Decoded(data)):
            done += (data[at:start], stand_in(mask, end - start))
            at = end
        return b"".join((*done, data[at:]))

    def _pass_on(self, fresh: bytes, keep: int) -> bytes:
        text, begin = self._past + fresh, len(self._past)
        decoded = Decoded(text, self._starts)
        end = max(begin, len(text) - keep, _after_last_empty_line(text))
        done: list[bytes] = []
        at, clear = begin, 0
        for found, found_end, mask in self._found(decoded):
            if found >= end:
                break
            done += (text[at:found], stand_in(mask, found_end - found)[max(0, begin - found) :])
            clear = found_end
            at = max(at, clear)
        end = max(end, at)
        done.append(text[at:end])
        # An echo that began before the last `_overlap` bytes of the text is complete, and was found.
        starts = [max(clear, start) for start in decoded.starts_before(max(min(len(text) - self._overlap, end), 0))]
        kept = min(starts)
        self._past, self._held, self._starts = text[kept:end], text[end:], [start - kept for start in starts]
        return b"".join(done)

    def _found(self, decoded: Decoded) -> list[tuple[int, int, bytes]]:
        """Where secrets are and what stands in their place, from left to right; those that overlap as one."""
        spans = [
            (start, end, each.mask)
            for view in decoded.views()
            for each in self._secrets
            for start, end in each.pattern.spans(view)
        ]
        joined: list[tuple[int, int, bytes]] = []
        for start, end, mask in sorted(spans, key=lambda span: (span[0], -span[1])):
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]), joined[-1][2])
            else:
                joined.append((start, end, mask))
        return joined


def _after_last_empty_line(text: bytes) -> int:
    return max(at + len(line) if (at := text.rfind(line)) >= 0 else 0 for line in _EMPTY_LINES)
