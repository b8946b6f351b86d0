"""Everything but TCP that any interface of the host sees, so that what got out of a sandbox is found wherever it went.

TCP has no way around a listener, and is far too much to look at while other tests download.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Tap", "tap"]

_EVERYTHING = 0x0003
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_BUFFER = 8 << 20
_PATIENCE_S = 30.0
_LOAD_BYTE, _EQUALS, _RETURN = 0x30, 0x15, 0x06
_PROTOCOL_AT = 9
"""In an IPv4 header, which comes first in these packets."""


class Tap:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._seen = b""

    def saw(self, *words: bytes, after: bytes) -> list[bytes]:
        """Which of the words have been seen by the time that `after` is, which was sent when all else had been.

        Raises:
            TimeoutError: that never came.
        """
        self._sock.settimeout(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while after not in self._seen:
            if time.monotonic() > deadline:
                raise TimeoutError("what was sent last was not seen")
            self._seen += self._sock.recv(65536)
        return [word for word in words if word in self._seen]


@contextmanager
def tap() -> Iterator[Tap]:
    """Needs root."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERYTHING)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        steps = (
            (_LOAD_BYTE, 0, 0, _PROTOCOL_AT),
            (_EQUALS, 0, 1, socket.IPPROTO_TCP),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, 65536),
        )
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(steps), ctypes.addressof(program)))
        yield Tap(sock)
