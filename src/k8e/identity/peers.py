"""Connections → callers.

`Identifier` is the seam: certificates and keys become further implementations beside the kernel's word.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from k8e.identity.callers import Caller, local_caller
from k8e.identity.sockdiag import SocketTable

__all__ = ["Identifier", "LoopbackIdentifier", "Peer"]


@dataclass(frozen=True, slots=True)
class Peer:
    """The far end of a connection; empty where it is not an IP address."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Peer:
        """From gRPC's form: `ipv4:127.0.0.1:5`, `ipv6:[::1]:5` or, with its bracket escaped, `ipv6:%5B::1%5D:5`."""
        family, _, rest = unquote(text).partition(":")
        host, _, port = rest.rpartition(":")
        if family not in {"ipv4", "ipv6"} or not port.isdecimal():
            return cls("", 0)
        return cls(host.strip("[]"), int(port))


class Identifier(Protocol):
    def identify(self, peer: Peer) -> Caller | None:
        """Who is behind a connection, or None for a stranger."""
        ...


class LoopbackIdentifier:
    """Knows a loopback caller by the uid that the kernel gives for its very connection.

    `host` and `port` are where the server listens. A wildcard address names nobody: the peer's address alone may
    stand in two connections at once, one of them somebody else's.
    """

    def __init__(self, host: str, port: int, sockets: SocketTable, *, operator: int) -> None:
        self._host = host
        self._port = port
        self._sockets = sockets
        self._operator = operator

    def identify(self, peer: Peer) -> Caller | None:
        if not (is_loopback(peer.host) and is_loopback(self._host)):
            return None
        uid = self._sockets.uid_of(source=(peer.host, peer.port), target=(self._host, self._port))
        return None if uid is None else local_caller(uid, operator=self._operator, via="loopback")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
