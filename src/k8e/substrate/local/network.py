"""The seam between sandboxes and their network: who makes a sandbox's namespace, and decides what passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from k8e.model import Availability, Decision, EgressPolicy, Grant, SandboxId, Verdict

__all__ = ["Network", "NoNetwork"]


class Network(Protocol):
    """Every method can be repeated."""

    @property
    def resolver(self) -> str:
        """The address that sandboxes ask for names."""
        ...

    @property
    def brokering(self) -> Availability:
        """Whether secrets can be put into requests outside the sandbox."""
        ...

    async def attach(self, sandbox: SandboxId) -> Path | None:
        """A namespace for it, from which nothing can be reached yet; None for a loopback of its own and nothing else.

        Raises: SandboxFailed.
        """
        ...

    async def detach(self, sandbox: SandboxId) -> None:
        """Take it away with everything that is remembered of it. Raises: SandboxFailed."""
        ...

    async def set_policy(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        """In force on return. Raises: SandboxFailed."""
        ...

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        """The certificate that it must trust for them, empty without grants. Raises: SandboxFailed."""
        ...

    def decisions(self) -> AsyncIterator[Decision]:
        """As they come; for one consumer, without an end."""
        ...

    async def settle(self) -> None:
        """Return when the consumer of `decisions` has dealt with all that were made before this call."""
        ...

    async def attached(self) -> frozenset[SandboxId]:
        """Every sandbox of which any trace exists."""
        ...


class NoNetwork:
    """Sandboxes with a loopback and nothing else: no policy can allow anything, so every policy holds."""

    resolver = ""
    brokering = Availability(available=False, detail="sandboxes have no network here")

    async def attach(self, sandbox: SandboxId) -> Path | None:
        return None

    async def detach(self, sandbox: SandboxId) -> None:
        return

    async def set_policy(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        return

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        return ""

    async def decisions(self) -> AsyncIterator[Decision]:
        await asyncio.Event().wait()
        yield Decision(at=0.0, sandbox=SandboxId(""), verdict=Verdict.DENIED, protocol="")

    async def settle(self) -> None:
        return

    async def attached(self) -> frozenset[SandboxId]:
        return frozenset()
