"""What the data plane asks of whoever keeps the members: who is behind an address, and whom to tell.

Every method is called on the event loop and answers at once; none of them may wait.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from k8e.egress.book import Book
from k8e.model import Decision, EgressPolicy, Grant, SandboxId

__all__ = ["Broker", "Desk", "Dial", "Member"]

Dial = Callable[[], Awaitable[socket.socket]]
"""A fresh, checked connection to the name in question; each call dials anew."""


class Member(Protocol):
    """A sandbox with a network. The plane knows it by `sandbox`, so it may be replaced by an equal one with news."""

    @property
    def sandbox(self) -> SandboxId: ...

    @property
    def policy(self) -> EgressPolicy: ...

    @property
    def book(self) -> Book: ...

    @property
    def grants(self) -> tuple[Grant, ...]: ...


class Desk(Protocol):
    def member(self, address: str) -> Member | None:
        """Whose address this is; None for nobody's, and then nothing passes."""

    def remember(self, member: Member) -> None:
        """The member's book has a new name: write it down soon."""

    def tell(self, decision: Decision) -> None:
        """Pass a decision on. It is told before the sandbox can feel it."""


class Broker(Protocol):
    """Speaks for a sandbox to a host that one of its secrets is for (`k8e.egress.broker.serve`)."""

    def __call__(
        self, client: socket.socket, first_bytes: bytes, name: str, member: Member, dial: Dial, desk: Desk
    ) -> Awaitable[tuple[int, int]]:
        """Serve until either side ends; bytes sent and received. The caller closes `client`, the broker what it dials."""
