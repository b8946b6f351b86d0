"""Who is calling: one answer for every door.

What a call presents is asked first and decides alone: a key, then a certificate. Only a call that presents neither is
whoever the kernel says its connection belongs to. A credential that is wrong, expired or revoked is nobody's, and
never a fallback to something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8e.errors import Denied, Unauthenticated
from k8e.identity.callers import Caller, Role, local_caller
from k8e.identity.certificates import ClientCertificates
from k8e.identity.keys import KeyRing
from k8e.identity.peers import LoopbackIdentifier
from k8e.identity.presented import Presented, TcpPeer, UnixPeer
from k8e.model import OwnerId

__all__ = ["Admitted", "Doorkeeper"]

OWNER_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    caller: Caller
    owner: OwnerId
    """Whose things the call is about: the caller's, or those of whom an administrator speaks for."""


class Doorkeeper:
    """`loopback` is None where connections of this machine are to prove themselves like any other."""

    def __init__(
        self,
        keys: KeyRing,
        certificates: ClientCertificates,
        *,
        loopback: LoopbackIdentifier | None,
        operator: int,
    ) -> None:
        self._keys = keys
        self._certificates = certificates
        self._loopback = loopback
        self._operator = operator

    def admit(self, presented: Presented) -> Admitted:
        """Raises: Unauthenticated, Denied."""
        caller = self.caller(presented)
        if not presented.owner:
            return Admitted(caller=caller, owner=caller.owner)
        if caller.role is not Role.ADMIN:
            raise Denied("only an administrator may speak for another owner: leave k8e-owner out")
        if len(presented.owner) > OWNER_CHARS or not presented.owner.isprintable():
            raise Denied(f"k8e-owner is not an owner: use 1-{OWNER_CHARS} printable characters")
        return Admitted(caller=caller, owner=OwnerId(presented.owner))

    def caller(self, presented: Presented) -> Caller:
        if presented.authorization:
            return self._by_key(presented.authorization)
        match presented.peer:
            case TcpPeer(certificate=bytes() as der):
                return self._by_certificate(der)
            case TcpPeer() as peer:
                return self._by_loopback(peer)
            case UnixPeer(uid, pid):
                return local_caller(uid, operator=self._operator, via="unix", pid=pid)
        raise Unauthenticated("unknown caller: this connection is not one of ours")

    def _by_key(self, authorization: str) -> Caller:
        scheme, _, text = authorization.partition(" ")
        key = self._keys.with_text(text.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            raise Unauthenticated("the API key is not known here or has expired: ask an administrator for a new one")
        return key.caller("key")

    def _by_certificate(self, der: bytes) -> Caller:
        key = self._certificates.key_of(der)
        if key is None:
            raise Unauthenticated("the client certificate has ended or was revoked: log in again with an API key")
        return key.caller("certificate")

    def _by_loopback(self, peer: TcpPeer) -> Caller:
        caller = self._loopback.identify(peer) if self._loopback else None
        if caller is None:
            raise Unauthenticated(
                "unknown caller: send an API key as `authorization: Bearer <key>`, or a client certificate from Login"
            )
        return caller
