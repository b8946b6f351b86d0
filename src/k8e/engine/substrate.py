"""The border between the engine and the place where sandboxes live.

The engine knows sessions, owners and commands; a substrate knows how a sandbox comes to be, lives and dies. The engine
asks for a state and hears of changes. An error of a substrate means that something is not known or not done now; it never
means that a sandbox is gone. Every method can be repeated, because the engine repeats what a crash may have cut short.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from k8e.model import (
    Availability,
    Capacity,
    Claim,
    Death,
    Decision,
    EgressPolicy,
    Grant,
    ImageProgress,
    OwnerId,
    Runtime,
    SandboxId,
    Template,
    Usage,
    WorkspaceId,
)
from k8e.tasks import Tasks
from k8e.wire.aio import Link

__all__ = [
    "Alive",
    "Capabilities",
    "Change",
    "Claimed",
    "Dead",
    "Held",
    "OutOfMemory",
    "OutOfTouch",
    "PoolStatus",
    "Substrate",
]

_YES = Availability(available=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a substrate can do; where it cannot, `detail` is the reason that a caller is told."""

    runtimes: Mapping[Runtime, Availability]
    images: Availability = _YES
    """Images other than the host's own."""
    workspaces: Availability = _YES
    """Workspaces that outlive a sandbox, or that several sandboxes share."""
    brokering: Availability = _YES
    """Secrets that are put into requests outside the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    sandbox: SandboxId
    epoch: int
    """At which its agent obeys this gateway."""
    warm: bool
    """Whether it was ready before it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A sandbox that is this gateway's to use or to remove."""

    epoch: int
    """At which its agent obeys this gateway; 0 if it cannot be reached any more."""
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Ready sandboxes of one template."""

    ready: int
    building: int
    target: int
    warm_claims: int
    cold_claims: int


@dataclass(frozen=True, slots=True)
class Alive:
    """It runs, as far as is known now."""

    sandbox: SandboxId


@dataclass(frozen=True, slots=True)
class Dead:
    """It has ended, for good."""

    sandbox: SandboxId
    death: Death


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """It reached its memory limit; what was done about it is in `detail`, and it goes on."""

    sandbox: SandboxId
    detail: str


@dataclass(frozen=True, slots=True)
class OutOfTouch:
    """Whether it runs is not known now; it may run."""

    sandbox: SandboxId
    detail: str


Change: TypeAlias = Alive | Dead | OutOfMemory | OutOfTouch


class Substrate(Protocol):
    async def begin(self, tasks: Tasks, *, gateway: str, usual: Claim, check_room: Callable[[], None]) -> None:
        """Called once, before anything else. What works in the background does so in these tasks.

        `gateway` names whoever will hold the sandboxes, the same after every restart. What it held before is taken back
        at a higher epoch; what another living gateway holds is left alone, and what a dead one held once its lease is over.
        `usual` is what most sessions are given, so that ready sandboxes can have it in advance. `check_room` is called
        when a sandbox is about to be made, and raises where the host should have no more of them.
        Raises: Conflict while somebody else is this gateway.
        """
        ...

    async def capabilities(self) -> Capabilities:
        """Found out for real, and then remembered."""
        ...

    def capacity(self) -> Capacity:
        """What there is for sandboxes, and what is left; cheap enough for every claim."""
        ...

    async def prepare(self, template: Template, owner: OwnerId, heard: Callable[[ImageProgress], None]) -> Template:
        """Get its image ready, from a registry if need be, so that a claim has only to boot; at once where it is.

        For one owner only so much is done at a time.
        Returns: the template with the image's exact name, which is what `claim` is given.
        Raises: InvalidSpec, HostUnsupported, Exhausted, DiskFull, SandboxFailed.
        """
        ...

    def keep_warm(self, template: Template) -> None:
        """Have sandboxes of this template ready from now on; how many, and whether at all, is the substrate's to know."""
        ...

    def pool(self) -> Mapping[Template, PoolStatus]:
        """What is ready now."""
        ...

    async def claim(self, template: Template, claim: Claim) -> Claimed:
        """A sandbox that nobody has used, with what its session may use; the caller's until it is released.

        A failure, or a caller that leaves, leaves nothing behind.
        Raises: HostUnsupported, InvalidSpec (unknown image), Exhausted, SandboxFailed, DiskFull.
        """
        ...

    async def connect(self, sandbox: SandboxId) -> Link:
        """A connection to its agent, returned after the agent's hello. Raises: SandboxFailed."""
        ...

    def changes(self) -> AsyncIterator[Change]:
        """How all claimed sandboxes are now, and then what changes; for one consumer, without an end.

        Whoever listens again after an error has missed nothing that still matters. Raises: SandboxFailed.
        """
        ...

    async def set_egress(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        """Change what it may reach: in force on return, and connections that it no longer allows are cut.

        Raises: SandboxFailed.
        """
        ...

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        """Broker these secrets for it, and no others.

        Returns: the certificate, as PEM, of the authority that it must trust for them; empty without grants.
        Raises: SandboxFailed.
        """
        ...

    def decisions(self) -> AsyncIterator[Decision]:
        """What sandboxes asked of the network and the answers, as they come; for one consumer, without an end."""
        ...

    async def settle_decisions(self) -> None:
        """Return when the consumer of `decisions` has dealt with all that were made before this call, if that is soon.

        A refusal is made known before the sandbox hears of it, so after this what a command was denied is known.
        """
        ...

    async def usage(self, sandboxes: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        """What each of them uses now; one that is gone uses nothing."""
        ...

    async def release(self, sandbox: SandboxId) -> None:
        """Remove every trace of it, in whatever state it is; unknown ids are fine, and so are those that another gateway
        holds by now, which stay. Raises: SandboxFailed."""
        ...

    async def mine(self) -> Mapping[SandboxId, Held]:
        """Every sandbox that this gateway holds, or of which a trace is left that nobody else can miss; none that is
        kept warm."""
        ...

    async def elsewhere(self) -> frozenset[SandboxId]:
        """Those that another living gateway holds. Raises: SandboxFailed when that cannot be seen now."""
        ...

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        """Make a workspace that outlives sandboxes; an existing one is left as it is."""
        ...

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        """Remove it with its content. Raises: Conflict while a sandbox uses it."""
        ...

    async def share_workspace(self, parent: SandboxId) -> WorkspaceId:
        """A name under which the sandbox's current workspace can be given to another sandbox."""
        ...

    async def clear(self) -> None:
        """Keep nothing warm any more, and remove every sandbox that is not another gateway's."""
        ...

    async def close(self) -> None:
        """Start nothing more and hang up; sandboxes go on, warm ones too."""
        ...
