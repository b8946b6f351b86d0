"""The border to a runtime: a driver builds a sandbox from a blueprint, up to an agent that listens, and dials that agent.

How that is done is the driver's own: from an overlay and a bundle for an OCI runtime, from a disk image and a kernel for a
virtual machine; over a unix socket, a virtio port or vsock. `LocalMachine` knows records, ids, networks, images,
workspaces, deaths and removal, and no name of a runtime.

What a driver may count on: `build`, `mount_workspace` and `remove` of one sandbox never overlap; the sandbox's directory and
its record are there before `build`, and the init that `build` returns is written down at once. Any other call may come at any
time, also from another thread, and also while the sandbox is being removed: what it needs may just be gone.

What it owes: a sandbox can be removed without any memory of it, because a crash can come at any line and a record can be
unreadable. So every process that it starts is in the sandbox's control groups; every file, mount and loop device of it lies
below the sandbox's directory. What cannot be there, such as a device-mapper device, or the socket of a virtio port whose path
would be too long, is named after the sandbox: `leftovers` finds it by that name, and `remove` removes it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from k8e.model import Availability, Claim, Death, Runtime, SandboxId
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.host.process import Process
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Agent, Image
from k8e.wire.aio import Credentials, Link

__all__ = ["Blueprint", "Driver", "LocalSandbox"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSandbox:
    """A sandbox as its record tells it: the same before and after a restart of the server."""

    id: SandboxId
    paths: SandboxPaths
    group: SandboxGroup
    block: int
    """Which block of 65536 host ids is its own."""
    memory_bytes: int
    """What its session may use; what the isolation itself takes comes on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a new sandbox is made of."""

    image: Image
    agent: Agent
    disk_bytes: int
    secret: str = ""
    """By which its agent knows who may dial it; none where another program runs instead of the agent."""
    netns: Path | None = None
    """The network namespace made for it; None: it has nothing but a loopback."""
    resolver: str = ""
    """The address that it asks for names; empty where there is none."""


class Driver(ABC):
    """One way to isolate. What not every runtime needs does nothing here."""

    runtime: Runtime

    # --- whether it works here -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def missing(self) -> str:
        """Why it can build nothing on this host; empty where it can be tried. What was built before works all the same."""

    @abstractmethod
    def probe(self) -> Availability:
        """Whether its programs start at all, and their version; blocking. Afterwards a sandbox is built as a trial."""

    def fall_back(self) -> bool:
        """The trial failed: take the next way of doing it, where there is one. Returns whether there was."""
        return False

    # --- from nothing to an agent that has answered ----------------------------------------------------------------

    @abstractmethod
    def build(self, sandbox: LocalSandbox, blueprint: Blueprint) -> Process:
        """From an empty directory to a running init; blocking.

        The init is the process whose death is the sandbox's: PID 1 of a container, the monitor of a virtual machine. Its
        sandbox must outlive ours: it is in no group of the server's and holds no pipe to it. What a failure leaves half-made
        is removed by name.
        Raises: SandboxFailed, with the step that failed.
        """

    async def listening(self, sandbox: LocalSandbox, init: Process) -> None:  # noqa: B027 - nothing to wait for by default
        """Return when the agent can be dialled, in a way that nothing inside can redirect afterwards.

        Nothing to do where `dial` waits by itself. Raises: SandboxFailed if the agent cannot start, OSError.
        """

    @abstractmethod
    async def dial(self, sandbox: LocalSandbox, credentials: Credentials, *, timeout_s: float) -> Link:
        """One try at a connection to the agent, returned after its hello.

        Raises: ConnectionRefusedError, BlockingIOError (try again while its init lives), and as `Link.over`.
        """

    def seal(self, sandbox: LocalSandbox) -> None:  # noqa: B027 - nothing to take away by default
        """The agent has answered for the first time: take from the sandbox what only the boot needed.

        Called once, before any untrusted code runs. Raises: OSError.
        """

    # --- at claim --------------------------------------------------------------------------------------------------

    @abstractmethod
    def limit(self, sandbox: LocalSandbox, claim: Claim) -> None:
        """Have the host enforce the claim's limits, as far as the agent does not. On the event loop: well below 1 ms.

        Raises: OSError.
        """

    @abstractmethod
    def mount_workspace(self, sandbox: LocalSandbox, source: Path) -> None:
        """Make a directory of the host available to the sandbox as its workspace; blocking, repeatable.

        Owners in `source` are as stored. Raises: OSError.
        """

    async def enter_workspace(self, sandbox: LocalSandbox, link: Link) -> None:  # noqa: B027 - it is there by default
        """Have the agent put what was mounted at /workspace, where it does not appear there by itself.

        Raises: LinkLost, RemoteError, TimeoutError.
        """

    # --- its life and its end --------------------------------------------------------------------------------------

    async def out_of_memory(self, sandbox: LocalSandbox) -> None:
        """Return when memory is exhausted and the agent must kill a process; give some more until `relieved`.

        Where a kernel chooses the process by itself and the sandbox lives on, as by default, this never returns.
        Raises: SandboxFailed.
        """
        await asyncio.Event().wait()

    def relieved(self, sandbox: LocalSandbox) -> None:  # noqa: B027 - nothing was given by default
        """The process is dead: take back what `out_of_memory` gave; blocking. Raises: OSError."""

    @abstractmethod
    def cause_of_death(self, sandbox: LocalSandbox) -> Death:
        """Why the init is dead; blocking, but brief."""

    @abstractmethod
    def last_words(self, paths: SandboxPaths) -> str:
        """What the runtime said last about this sandbox; empty if nothing. Also while it is half-made."""

    @abstractmethod
    def written(self, sandbox: LocalSandbox) -> Path:
        """Where the host sees what was written in a sandbox whose init has ended, laid out as its root directory.

        SAFETY: it was written by what ran there; whoever reads it follows no link.
        """

    # --- what lies elsewhere ---------------------------------------------------------------------------------------

    def leftovers(self) -> frozenset[SandboxId]:
        """The sandboxes of which something exists outside their groups and directories, by its name; blocking.

        Only of this data directory: what other servers have on this host is not to be removed.
        """
        return frozenset()

    def remove(self, sandbox: SandboxId) -> None:  # noqa: B027 - nothing lies elsewhere by default
        """Remove that, in whatever state; blocking, repeatable.

        Called for every sandbox that is removed, because its record may be unreadable: an id that is not known, or another
        driver's, is fine. No process of the sandbox runs any more. Raises: OSError.
        """
