"""Where one server's keys and certificates are made and kept: everything identity, over one directory."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k8e.identity.authority import Authority
from k8e.identity.certificates import ClientCertificates
from k8e.identity.doorkeeper import Doorkeeper
from k8e.identity.keys import KeyRing
from k8e.identity.peers import LoopbackIdentifier
from k8e.identity.sockdiag import SocketTable

__all__ = ["Office"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    authority: Authority
    keys: KeyRing
    certificates: ClientCertificates

    @classmethod
    def open(cls, directory: Path, *, clock: Callable[[], float]) -> Office:
        """`directory` is `<data>/server`. Raises: StoreFailed."""
        now = datetime.datetime.fromtimestamp(clock(), datetime.UTC)
        authority = Authority.open(directory / "tls", now=now)
        keys = KeyRing(directory / "apikeys.json", clock=clock)
        issued = directory / "tls" / "sandbox-issued.json"
        certificates = ClientCertificates(authority, issued, keys, clock=clock)
        return cls(authority=authority, keys=keys, certificates=certificates)

    def doorkeeper(self, *, sockets: SocketTable | None, operator: int) -> Doorkeeper:
        """Without `sockets` a loopback connection proves itself like any other."""
        loopback = LoopbackIdentifier(sockets, operator=operator) if sockets else None
        return Doorkeeper(self.keys, self.certificates, loopback=loopback, operator=operator)
