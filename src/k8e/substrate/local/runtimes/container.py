"""`container`: runc (or crun). The host's own kernel serves the sandbox, so this is weaker than gVisor and never the default."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

from k8e.model import MIB, Availability, Runtime
from k8e.substrate.local.blocks import base_id
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import MAX_OPEN_FILES, Isolation
from k8e.substrate.local.runtimes import seccomp
from k8e.substrate.local.runtimes.oci import CONTAINER_ID
from k8e.substrate.local.runtimes.version import first_line

__all__ = ["USERNS_LIMITS", "Container"]

USERNS_LIMITS = {"max_inotify_instances": 256, "max_inotify_watches": 65_536, "max_user_namespaces": 0}
"""What one sandbox may have. The kernel counts it in the namespace and once more outside, for the user that made the
namespace: the sandbox's own user does, so that it cannot use up what the host's root has."""


class Container:
    runtime = Runtime.CONTAINER
    joins_userns = True
    moves_itself = True
    enters_netns = True
    """Joining a user namespace first, runc has no power left to join a network namespace of the host's."""
    agent_niceness = -10
    binds_workspace_inside = False
    host_counts_tasks = True
    handles_oom_inside = False
    overhead_bytes = 32 * MIB

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def argv(self, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        open_files = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return [
            # Not by runc: root without CAP_SYS_RESOURCE may not set those of a process in a namespace that is not its own.
            *("prlimit", f"--nofile={open_files}:{open_files}", "--core=0:0", "--"),
            *(str(self._binary), "--root", str(paths.state), "--log", str(paths.log), "--log-format", "json"),
            *("run", "--detach", "--pid-file", str(paths.pid_file), "--bundle", str(paths.bundle)),
            CONTAINER_ID,
        ]

    def isolation(self, group: SandboxGroup, *, block: int, userns: int | None) -> Isolation:
        return Isolation(
            seccomp=seccomp.profile(platform.machine()),
            userns="" if userns is None else f"/proc/{os.getpid()}/fd/{userns}",
            cgroup_namespace=True,
            door=group.commands_door(base_id(block)),
            memory_counts=group.memory_counts(),
            inherits_limits=True,
        )

    def fall_back(self) -> bool:
        return False

    def probe(self) -> Availability:
        return first_line(self._binary)
