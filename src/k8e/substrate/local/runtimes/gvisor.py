"""`gvisor`: runsc with systrap. The sandbox's system calls are served by gVisor's own kernel in user space."""

from __future__ import annotations

import re
import subprocess
from functools import cached_property
from pathlib import Path

from k8e.model import MIB, Availability, Runtime
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Isolation
from k8e.substrate.local.runtimes.oci import CONTAINER_ID
from k8e.substrate.local.runtimes.version import first_line

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


class Gvisor:
    runtime = Runtime.GVISOR
    joins_userns = False
    moves_itself = False
    enters_netns = False
    agent_niceness = 0
    binds_workspace_inside = True
    host_counts_tasks = False
    handles_oom_inside = True
    overhead_bytes = 128 * MIB

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._stack = 0

    @cached_property
    def _flags(self) -> list[str]:
        known = _known_flags(self._binary)
        return [f"--{name}={value}" for name, value in _FLAGS.items() if name not in _OPTIONAL or name in known]

    def argv(self, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        stack = _STACKS[self._stack] if has_network else _NO_NETWORK
        return [
            *(str(self._binary), "--root", str(paths.state), *self._flags, f"--network={stack}"),
            *("--log", str(paths.log), "--log-format", "json"),
            *("run", "--detach", "--pid-file", str(paths.pid_file), "--bundle", str(paths.bundle), CONTAINER_ID),
        ]

    def isolation(self, group: SandboxGroup, *, block: int, userns: int | None) -> Isolation:
        # These are gVisor's own capabilities: SYS_ADMIN lets the agent bind a workspace, and reaches no host kernel.
        base = Isolation()
        return Isolation(capabilities=(*base.capabilities, "SYS_ADMIN"), gofer_hints=True)

    def fall_back(self) -> bool:
        if self._stack + 1 == len(_STACKS):
            return False
        self._stack += 1
        return True

    def probe(self) -> Availability:
        return first_line(self._binary)


def _known_flags(binary: Path) -> frozenset[str]:
    result = subprocess.run([str(binary), "flags"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return frozenset(re.findall(r"^\s+-([\w-]+)", result.stdout + result.stderr, re.MULTILINE))
