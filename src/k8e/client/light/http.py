"""One HTTP/1.1 exchange over a connected socket, and the five-byte envelopes of Connect's streams.

Written out because the standard library's client costs more to import than a whole call here takes.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import BinaryIO, Self

__all__ = [
    "Envelopes",
    "Exchange",
    "LostConnectionError",
    "announced_size",
    "envelope",
    "header_pairs",
    "request_head",
    "status_of",
]

LINE = 64 * 1024
HEADERS = 256
ENVELOPE_BYTES = 256 * 1024 * 1024
"""More than the largest message becomes in JSON."""
PREFIX = 5


class LostConnectionError(Exception):
    """The other side went away, or does not speak HTTP."""


def envelope(body: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(body).to_bytes(4, "big") + body


class Envelopes:
    """What has arrived of a stream, taken apart."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """The envelopes that are whole now, each with its flags. Raises: LostConnectionError."""
        held = self._held
        held += piece
        while len(held) >= PREFIX:
            size = int.from_bytes(held[1:PREFIX], "big")
            if size > ENVELOPE_BYTES:
                raise LostConnectionError(f"a message of {size} bytes was announced")
            if len(held) < PREFIX + size:
                break
            flags, body = held[0], bytes(memoryview(held)[PREFIX : PREFIX + size])
            del held[: PREFIX + size]
            yield flags, body


def request_head(path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The first bytes of a request; None as its body says that pieces will follow."""
    length = "transfer-encoding: chunked" if body is None else f"content-length: {len(body)}"
    lines = [f"POST {path} HTTP/1.1", "host: k8e", length, *(f"{key}: {value}" for key, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def status_of(line: bytes) -> int:
    """Raises: LostConnectionError."""
    try:
        return int(line.split(b" ", 2)[1])
    except (ValueError, IndexError) as error:
        raise LostConnectionError("what answers there does not speak HTTP") from error


def header_pairs(lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, _, value = line.decode("latin-1").partition(":")
        yield key.lower(), value.strip()


class Exchange:
    """A request and its answer; leaving the block closes the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file: BinaryIO = connection.makefile("rb")
        self._answer: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._connection.close()

    def send_head(self, path: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Begin the request; None as its body says that pieces will follow."""
        head = request_head(path, headers, body)
        # It may have answered before it stopped listening; if not, reading tells.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sendall(head + (body or b""))

    def send_pieces(self, pieces: Iterable[bytes]) -> None:
        """Send until the pieces end or the server stops listening: then it has answered already."""
        # The answer may have begun long ago; that alone does not mean that it wants no more.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                self.send_piece(piece)
            self.end_pieces()

    def send_piece(self, piece: bytes) -> None:
        """Raises: OSError."""
        self._connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    def end_pieces(self) -> None:
        """Raises: OSError."""
        self._connection.sendall(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """End both directions at once, also for a thread that waits on one; the descriptor stays ours until the end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def receive_head(self) -> tuple[int, Mapping[str, str]]:
        status = status_of(self._line())
        self._answer = dict(header_pairs(self._headers()))
        return status, self._answer

    def receive_all(self) -> bytes:
        return b"".join(self._body())

    def receive_envelopes(self) -> Iterator[tuple[int, bytes]]:
        envelopes = Envelopes()
        for piece in self._body():
            yield from envelopes.feed(piece)

    def _line(self) -> bytes:
        line = self._file.readline(LINE)
        if not line.endswith(b"\n"):
            raise LostConnectionError("the connection was closed")
        return line.rstrip(b"\r\n")

    def _headers(self) -> Iterator[bytes]:
        for _ in range(HEADERS):
            if not (line := self._line()):
                return
            yield line
        raise LostConnectionError("too many headers were sent")

    def _body(self) -> Iterator[bytes]:
        if self._answer.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
        elif length := announced_size(self._answer.get("content-length", "0"), 10):
            yield self._exactly(length)

    def _chunks(self) -> Iterator[bytes]:
        while size := announced_size(self._line().partition(b";")[0].decode("latin-1"), 16):
            yield self._exactly(size)
            self._line()
        self._line()

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise LostConnectionError("the connection was closed")
        return data


def announced_size(text: str, base: int) -> int:
    """Raises: LostConnectionError when nobody would send so much, or it is no number."""
    try:
        size = int(text, base)
    except ValueError as error:
        raise LostConnectionError(f"{text[:20]!r} is announced as a size") from error
    if not 0 <= size <= ENVELOPE_BYTES:
        raise LostConnectionError(f"{size} bytes are announced")
    return size
