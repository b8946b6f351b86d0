"""The name in a TLS ClientHello, as OpenSSL reads it: there is no parser of ours to disagree with a server's.

A server-side handshake is fed until OpenSSL asks which certificate to show; that is where it ends.
"""

from __future__ import annotations

import ssl
import sys
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["LIMIT", "Hello", "HelloReader", "Kind"]

LIMIT = 64 * 1024
"""Post-quantum key shares and long lists fit many times."""

_RECORD_TYPES = range(0x14, 0x19)
_V2_HELLO = 1


class Kind(StrEnum):
    TLS = "tls"
    OTHER = "other"
    """Bytes that no TLS client begins with."""
    BROKEN = "broken"
    """Begins like TLS, but OpenSSL makes nothing of it."""


@dataclass(frozen=True, slots=True)
class Hello:
    kind: Kind
    name: str | None = None
    """As the client wrote it; None when it named nobody."""


class _Eavesdropper(ssl.SSLObject):
    """A handshake that only wants to hear whom the client asks for."""

    heard: list[str | None]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _Eavesdropper
    # We judge names, not cryptography: old clients must get as far as theirs.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.sni_callback = _on_name
    return context


def _on_name(handshake: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
    if isinstance(handshake, _Eavesdropper):
        handshake.heard.append(name)
    return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE


_CONTEXT = _context()


class HelloReader:
    """Takes a connection's first bytes as they come."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self._incoming = ssl.MemoryBIO()
        self._handshake: _Eavesdropper | None = None

    def feed(self, data: bytes) -> Hello | None:
        """What it is; None while that cannot be said yet. No data is the end of the stream."""
        self.taken += data
        if not data:
            return Hello(Kind.BROKEN if self._handshake else Kind.OTHER)
        if self._handshake is None:
            is_tls = _begins_like_tls(self.taken)
            if not is_tls:
                return None if is_tls is None else Hello(Kind.OTHER)
            self._handshake = self._begin()
            data = bytes(self.taken)
        self._incoming.write(data)
        return self._advance(self._handshake)

    def _begin(self) -> _Eavesdropper:
        handshake = _CONTEXT.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        if not isinstance(handshake, _Eavesdropper):
            raise TypeError("the context made another kind of handshake than it was told to")
        handshake.heard = []
        return handshake

    def _advance(self, handshake: _Eavesdropper) -> Hello | None:
        # A name that is not ASCII never reaches the callback: Python complains of it where nobody can catch it.
        complain, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            handshake.do_handshake()
        except ssl.SSLWantReadError:
            return None if len(self.taken) < LIMIT else Hello(Kind.BROKEN)
        except ssl.SSLError:
            pass
        finally:
            sys.unraisablehook = complain
        return Hello(Kind.TLS, handshake.heard[0]) if handshake.heard else Hello(Kind.BROKEN)


def _begins_like_tls(data: bytearray) -> bool | None:
    """None: too little to say."""
    if data[0] in _RECORD_TYPES:
        return True
    if not data[0] & 0x80:
        return False
    # The hello of SSL 2, which old libraries still wrap theirs in.
    return None if len(data) < 3 else data[2] == _V2_HELLO
