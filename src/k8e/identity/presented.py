"""What a connection and a call show about themselves, as the doors hand it to the doorkeeper."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Peer", "Presented", "TcpPeer", "UnixPeer"]


@dataclass(frozen=True, slots=True)
class UnixPeer:
    """A process of this machine, by the kernel's word."""

    uid: int
    pid: int = 0
    """The one that connected; 0 where it is not known, or not to be seen from here."""


@dataclass(frozen=True, slots=True)
class TcpPeer:
    """The two ends of one accepted connection, and the certificate that its TLS handshake proved."""

    source: tuple[str, int]
    target: tuple[str, int]
    certificate: bytes | None = None
    """DER; already verified against our own authority."""


Peer = UnixPeer | TcpPeer


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    peer: Peer | None
    """None where the connection is not one that a door made out."""
    authorization: str = ""
    """The header as it was sent."""
    owner: str = ""
    """Whom the caller wants to speak for: the header `k8e-owner`."""
    traceparent: str = ""
    """The trace that the call is part of; proves nothing."""
