"""`gvisor`: runsc with systrap. The sandbox's system calls are served by gVisor's own kernel in user space."""

from __future__ import annotations

import asyncio
import errno
import re
import subprocess
from functools import cached_property
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.model import MIB, Death, Runtime
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import oom
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import LIVE_AT, Isolation
from k8e.substrate.local.runtimes.driver import LocalSandbox
from k8e.substrate.local.runtimes.oci import CONTAINER_ID, OciDriver
from k8e.wire.aio import Link

__all__ = ["Gvisor"]

_FLAGS = {
    "platform": "systrap",
    # Our overlay has the quota; runsc's own would write an unquoted file beside it.
    "overlay2": "none",
    # The agent inside creates the socket that the engine dials.
    "host-uds": "create",
    # Mounts are cached as the sandbox's own, but for those with a hint (see plan).
    "file-access-mounts": "exclusive",
    # A namespace per gofer goes with it; the shared default is pinned by a mount that nobody removes.
    "gofer-network-namespace": "new",
    # With v1's seven hierarchies a fork is charged to one of them at random, so a limit on processes holds for every
    # seventh; with v2 the agent's own hierarchy is the only one there is.
    "in-sandbox-cgroup": "v2",
}
_NO_NETWORK = "none"
"""Netstack with a loopback and nothing else."""
_STACKS = ("sandbox", "host")
"""gVisor's own stack, or the namespace's: older releases refuse the first on newer kernels."""
_OPTIONAL = frozenset({"gofer-network-namespace", "in-sandbox-cgroup"})
"""Flags that older releases do not know and work without."""
_TIMEOUT_S = 10.0
_WORKSPACE = "ws"
"""The directory below the live mount where a workspace is mounted that was given at claim."""


class Gvisor(OciDriver):
    runtime = Runtime.GVISOR
    remedy = "no runsc was found; `k8e doctor --fix` installs it"
    overhead_bytes = 128 * MIB

    def __init__(self, binary: Path | None, disks: Disks, idmaps: IdMaps) -> None:
        super().__init__(binary, disks, idmaps)
        self._stack = 0

    @cached_property
    def _flags(self) -> list[str]:
        """Remembered once they are known. Raises: SandboxFailed."""
        known = _known_flags(self.binary)
        return [f"--{name}={value}" for name, value in _FLAGS.items() if name not in _OPTIONAL or name in known]

    def argv(self, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        stack = _STACKS[self._stack] if has_network else _NO_NETWORK
        return [
            *(str(self.binary), "--root", str(paths.state), *self._flags, f"--network={stack}"),
            *("--log", str(paths.log), "--log-format", "json"),
            *("run", "--detach", "--pid-file", str(paths.pid_file), "--bundle", str(paths.bundle), CONTAINER_ID),
        ]

    def isolation(self, sandbox: LocalSandbox, userns: int | None) -> Isolation:
        # These are gVisor's own capabilities: SYS_ADMIN lets the agent bind a workspace, and reaches no host kernel.
        base = Isolation()
        return Isolation(capabilities=(*base.capabilities, "SYS_ADMIN"), gofer_hints=True)

    def fall_back(self) -> bool:
        if self._stack + 1 == len(_STACKS):
            return False
        self._stack += 1
        return True

    def mount_workspace(self, sandbox: LocalSandbox, source: Path) -> None:
        """Beside /workspace: runsc does not see mounts that the host makes over a directory it holds open."""
        target = sandbox.paths.live / _WORKSPACE
        target.mkdir(exist_ok=True)
        if not target.is_mount():
            self.mount_shifted(sandbox, source, target)

    async def enter_workspace(self, sandbox: LocalSandbox, link: Link) -> None:
        await link.call("bind", {"source": f"{LIVE_AT}/{_WORKSPACE}", "target": "/workspace"})

    def make_groups(self, sandbox: LocalSandbox) -> None:
        """The host's OOM killer would take the whole sandbox, so its limit is where nobody should come."""
        super().make_groups(sandbox)
        memory = self.memory(sandbox)
        oom.prepare(sandbox.group, memory.limit_bytes, memory.headroom_bytes)

    async def out_of_memory(self, sandbox: LocalSandbox) -> None:
        memory = self.memory(sandbox)
        try:
            await oom.wait(sandbox.group, memory.limit_bytes)
            oom.lend(sandbox.group, memory.limit_bytes, memory.headroom_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise SandboxFailed("watch memory", error) from error
            await asyncio.Event().wait()  # removing a group wakes its watchers

    def relieved(self, sandbox: LocalSandbox) -> None:
        memory = self.memory(sandbox)
        oom.restore(sandbox.group, memory.limit_bytes, memory.headroom_bytes)

    def cause_of_death(self, sandbox: LocalSandbox) -> Death:
        if sandbox.group.memory_kills():
            return Death(oom=True, detail="the kernel killed it for memory")
        return super().cause_of_death(sandbox)


def _known_flags(binary: Path) -> frozenset[str]:
    """Raises: SandboxFailed where it does not say: a flag that protects must not be left out for that."""
    try:
        result = subprocess.run([str(binary), "flags"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxFailed("ask runsc for its flags", error) from error
    known = frozenset(re.findall(r"^\s+-([\w-]+)", result.stdout + result.stderr, re.MULTILINE))
    if not known:
        raise SandboxFailed("ask runsc for its flags", "it named none")
    return known
