"""One host that can make sandboxes: each is built, reached and removed by its id, and nothing is decided about them.

Every method can be repeated, because whoever asks repeats what a crash may have cut short.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from k8e.engine.substrate import Capabilities
from k8e.model import (
    Capacity,
    Claim,
    Death,
    Decision,
    EgressPolicy,
    Grant,
    ImageProgress,
    OwnerId,
    SandboxId,
    Template,
    Usage,
    WorkspaceId,
)
from k8e.wire.aio import Credentials, Link

__all__ = ["Machine"]


class Machine(Protocol):
    @property
    def owners_dir(self) -> Path:
        """Where all gateways of this machine write down whose its sandboxes are."""
        ...

    async def capabilities(self) -> Capabilities:
        """What works here, probed for real once per process and then remembered."""
        ...

    def capacity(self) -> Capacity:
        """What there is for sandboxes, and what is left; cheap enough for every claim."""
        ...

    async def tend(self) -> None:
        """Look after what all sandboxes share, for as long as it is not cancelled."""
        ...

    async def prepare(self, template: Template, owner: OwnerId, heard: Callable[[ImageProgress], None]) -> Template:
        """Get its image ready, from a registry if need be, so that `create` has only to boot; at once where it is.

        For one owner only so much is done at a time.
        Returns: the template with the image's exact name, which is what `create` and the pool are given.
        Raises: InvalidSpec, HostUnsupported, Exhausted, DiskFull, SandboxFailed.
        """
        ...

    async def create(self, sandbox: SandboxId, template: Template, credentials: Credentials) -> None:
        """Build and boot; on return `dial` works, for who knows the secret of these. A failure leaves nothing behind.

        Raises: HostUnsupported, InvalidSpec (unknown image), SandboxFailed, DiskFull.
        """
        ...

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        """A new connection to the agent, returned after its hello. Raises: SandboxFailed, DialRefused."""
        ...

    async def configure(self, sandbox: SandboxId, claim: Claim, link: Link) -> None:
        """Give a booted sandbox what its session may use; cheap enough for the claim path.

        What it already has, its network's policy above all, is not given again.
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

    async def death(self, sandbox: SandboxId) -> Death:
        """Wait until the sandbox's init is dead, and say why. Raises: OSError when that cannot be seen now."""
        ...

    async def out_of_memory(self, sandbox: SandboxId) -> None:
        """Wait until the sandbox has hit its memory limit once; the caller then asks the agent to kill the hog.

        Raises: SandboxFailed, OSError when that cannot be seen now.
        """
        ...

    async def relieved(self, sandbox: SandboxId) -> None:
        """The hog is dead: put the memory limit back."""
        ...

    async def usage(self, sandboxes: Collection[SandboxId]) -> Mapping[SandboxId, Usage]:
        """What each of them uses now; one that is gone uses nothing."""
        ...

    def mark_warm(self, sandbox: SandboxId, template: Template) -> None:
        """It is ready, and nobody has used it: a restart may keep it so. Raises: SandboxFailed."""
        ...

    def mark_used(self, sandbox: SandboxId) -> None:
        """No longer: after this line no restart takes it for a ready one. Cheap enough for the claim path."""
        ...

    async def warm(self) -> Mapping[SandboxId, Template]:
        """Those that are marked as ready, running or not. Raises: OSError when that cannot be seen now."""
        ...

    async def destroy(self, sandbox: SandboxId) -> None:
        """Remove every trace, in whatever state it is; unknown ids are fine.

        A step that fails keeps back only what needs it. Raises: SandboxFailed, when the rest is removed.
        """
        ...

    async def survivors(self) -> frozenset[SandboxId]:
        """Every sandbox of which any trace exists, alive or not."""
        ...

    def alive(self, sandbox: SandboxId) -> bool:
        """Whether its init still runs (stored pid and start time, never a name).

        Raises: OSError when that cannot be seen now, which is no answer.
        """
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
