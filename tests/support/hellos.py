"""ClientHellos as real clients write them, and rearranged."""

from __future__ import annotations

import contextlib
import ssl
import warnings
from functools import cache

__all__ = ["client_hello", "in_records"]

_GREASE = b"\x0a\x0a"


@cache
def client_hello(name: str | None, version: ssl.TLSVersion | None = None, *, grease: bool = False) -> bytes:
    """OpenSSL's own first flight."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = version
            context.maximum_version = version
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    data = outgoing.read()
    return _with_grease(data) if grease else data


def in_records(hello: bytes, size: int) -> bytes:
    """The same handshake message over many records of `size` bytes."""
    head, body = hello[:3], hello[5:]
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(head + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def _with_grease(hello: bytes) -> bytes:
    """With a reserved cipher and a reserved extension in front, as browsers do to keep servers honest."""
    body = bytearray(hello[9:])
    at = 2 + 32
    at += 1 + body[at]
    ciphers = int.from_bytes(body[at : at + 2], "big")
    body[at : at + 2] = (ciphers + 2).to_bytes(2, "big")
    body[at + 2 : at + 2] = _GREASE
    at += 2 + ciphers + 2
    at += 1 + body[at]
    extensions = int.from_bytes(body[at : at + 2], "big")
    body[at : at + 2] = (extensions + 5).to_bytes(2, "big")
    body[at + 2 : at + 2] = _GREASE + b"\x00\x01\x00"
    message = hello[5:6] + len(body).to_bytes(3, "big") + bytes(body)
    return hello[:3] + len(message).to_bytes(2, "big") + message
