"""Connections of this machine → callers, by the kernel's word."""

from __future__ import annotations

import ipaddress

from k8e.identity.callers import Caller, local_caller
from k8e.identity.presented import TcpPeer
from k8e.identity.sockdiag import SocketTable

__all__ = ["LoopbackIdentifier"]


class LoopbackIdentifier:
    """Knows a loopback caller by the uid that the kernel gives for its very connection.

    Both ends are those of the accepted socket, never the address that was listened on: behind a wildcard the peer's
    address alone may stand in two connections at once, one of them somebody else's.
    """

    def __init__(self, sockets: SocketTable, *, operator: int) -> None:
        self._sockets = sockets
        self._operator = operator

    def identify(self, peer: TcpPeer) -> Caller | None:
        """Who is behind a connection, or None for a stranger."""
        if not (is_loopback(peer.source[0]) and is_loopback(peer.target[0])):
            return None
        uid = self._sockets.uid_of(source=peer.source, target=peer.target)
        return None if uid is None else local_caller(uid, operator=self._operator, via="loopback")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
