"""`container`: runc (or crun). The host's own kernel serves the sandbox, so this is weaker than gVisor and never the default."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

from k8e.model import MIB, Claim, Runtime
from k8e.substrate.local.blocks import base_id, sandbox_map
from k8e.substrate.local.host import cgroup
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.host.userns import Nascent
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import MAX_OPEN_FILES, Isolation
from k8e.substrate.local.runtimes import seccomp
from k8e.substrate.local.runtimes.driver import LocalSandbox
from k8e.substrate.local.runtimes.oci import CONTAINER_ID, OciDriver

__all__ = ["Container"]

_USERNS_LIMITS = {"max_inotify_instances": 256, "max_inotify_watches": 65_536, "max_user_namespaces": 0}
"""What one sandbox may have. The kernel counts it in the namespace and once more outside, for the user that made the
namespace: the sandbox's own user does, so that it cannot use up what the host's root has."""
_OWN_PROCESSES = 6
"""Runners and parked interpreters wait in the commands' group, and are no part of what a session may have; the agent
allows as many (`k8e.agent.limits`) where it does the counting."""


class Container(OciDriver):
    runtime = Runtime.CONTAINER
    remedy = "no runc was found; `apt-get install runc` (or `k8e doctor --fix`) provides it"
    overhead_bytes = 32 * MIB
    agent_niceness = -10

    def entering(self, netns: Path) -> list[str]:
        """Joining a user namespace first, runc has no power left to join a network namespace of the host's."""
        return ["nsenter", f"--net={netns}", "--"]

    def launch_files(self, group: SandboxGroup) -> list[Path]:
        """It moves the sandbox into its groups by itself, and wants them empty before."""
        return group.launch_files()

    def start_userns(self, sandbox: LocalSandbox) -> Nascent:
        return Nascent.start(sandbox_map(sandbox.block), _USERNS_LIMITS, owner=base_id(sandbox.block))

    def argv(self, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        open_files = min(MAX_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return [
            # Not by runc: root without CAP_SYS_RESOURCE may not set those of a process in a namespace that is not its own.
            *("prlimit", f"--nofile={open_files}:{open_files}", "--core=0:0", "--"),
            *(str(self.binary), "--root", str(paths.state), "--log", str(paths.log), "--log-format", "json"),
            *("run", "--detach", "--pid-file", str(paths.pid_file), "--bundle", str(paths.bundle)),
            CONTAINER_ID,
        ]

    def isolation(self, sandbox: LocalSandbox, userns: int | None) -> Isolation:
        return Isolation(
            seccomp=seccomp.profile(platform.machine()),
            userns="" if userns is None else f"/proc/{os.getpid()}/fd/{userns}",
            is_inside_netns=True,
            cgroup_namespace=True,
            door=sandbox.group.commands_door(base_id(sandbox.block)),
            memory_counts=sandbox.group.memory_counts(),
            inherits_limits=True,
        )

    def limit(self, sandbox: LocalSandbox, claim: Claim) -> None:
        """The sandbox's processes are the host's, so the host's groups can count them."""
        super().limit(sandbox, claim)
        sandbox.group.limit_tasks(claim.processes + _OWN_PROCESSES, cgroup.COMMANDS)
