"""Sandboxes by an OCI runtime: an overlay over a disk with a quota, a bundle, and an agent behind a bind-mounted socket.

`OciDriver` has what runsc and runc share; what differs are the methods that each of the two overrides.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from k8e.errors import HostUnsupported, SandboxFailed
from k8e.model import Availability, Claim, Death
from k8e.substrate.local import plan
from k8e.substrate.local.blocks import base_id
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import mount
from k8e.substrate.local.host.cgroup import AGENT, UNLIMITED, SandboxGroup
from k8e.substrate.local.host.process import Process, set_niceness
from k8e.substrate.local.host.userns import Nascent
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Boot, Isolation, MemoryPlan
from k8e.substrate.local.runtimes import agent_socket, overlay
from k8e.substrate.local.runtimes.driver import Blueprint, Driver, LocalSandbox
from k8e.substrate.local.runtimes.launcher import Launcher, tail
from k8e.substrate.local.runtimes.overlay import OverlayRoots
from k8e.substrate.local.runtimes.version import first_line
from k8e.wire.aio import Credentials, Link

__all__ = ["CONTAINER_ID", "OciDriver"]

CONTAINER_ID = "sb"
"""The same for all: each sandbox has a runtime root of its own, and control sockets have short paths."""

_HOST_TASKS = 16_384
"""For the whole sandbox; generous, because gVisor's own threads count and meeting it is fatal to them."""


class OciDriver(Driver):
    """Safe from several threads."""

    remedy: str
    """What to do where the runtime is not installed."""
    overhead_bytes: int
    """Memory that isolation itself takes, granted on top of the session's."""
    agent_niceness = 0
    """How much the agent goes before its own commands, where the host's scheduler knows both: it must answer while they
    use up the session's time, and hand on their output while they still run."""

    def __init__(self, binary: Path | None, disks: Disks, idmaps: IdMaps) -> None:
        self._binary = binary
        self._roots = OverlayRoots(disks, idmaps)
        self._max_open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    # --- how one runtime differs from another ----------------------------------------------------------------------

    @abstractmethod
    def argv(self, paths: SandboxPaths, *, has_network: bool) -> list[str]:
        """The command that boots the bundle, detached."""

    @abstractmethod
    def isolation(self, sandbox: LocalSandbox, userns: int | None) -> Isolation:
        """How its spec differs; `userns` is what `start_userns` became."""

    def entering(self, netns: Path) -> list[str]:
        """Words that run the command inside the sandbox's network namespace; none where it joins one by its path."""
        return []

    def launch_files(self, group: SandboxGroup) -> list[Path]:
        """Where the launcher writes itself: all that it starts stays in these groups."""
        return group.procs_files()

    def start_userns(self, sandbox: LocalSandbox) -> Nascent | None:
        """The user namespace that it joins; None where it makes its own.

        A fresh one per sandbox, even when its block is reused: keyrings and counters belong to the namespace.
        """
        return None

    # --- whether it works here -------------------------------------------------------------------------------------

    @property
    def missing(self) -> str:
        return f"{self.runtime} is not available on this host: {self.remedy}" if self._binary is None else ""

    @property
    def binary(self) -> Path:
        """Raises: HostUnsupported."""
        if self._binary is None:
            raise HostUnsupported(self.missing)
        return self._binary

    def probe(self) -> Availability:
        return first_line(self.binary)

    # --- from nothing to an agent that has answered ----------------------------------------------------------------

    def build(self, sandbox: LocalSandbox, blueprint: Blueprint) -> Process:
        paths = sandbox.paths
        with ExitStack() as cleanup:
            with _step("make cgroups"):
                self.make_groups(sandbox)
            with _step("start launcher"):
                launcher = self._start_launcher(sandbox, blueprint)
                cleanup.callback(launcher.abandon)
                nascent = self.start_userns(sandbox)
                if nascent is not None:
                    cleanup.callback(nascent.close)
            with _step("make directories"):
                _make_directories(paths)
            with _step("make disk"):
                self._roots.make_disk(sandbox, blueprint)
            with _step("mount rootfs"):
                self._roots.mount(sandbox, blueprint.image)
            if blueprint.image.usr:
                with _step("mount a writable /usr, which --allow-apt needs"):
                    self._roots.mount_usr(sandbox, blueprint.image)
            with _step("make control socket directory"):
                agent_socket.make(paths, base_id(sandbox.block))
                if blueprint.secret:
                    agent_socket.give_secret(paths, blueprint.secret, base_id(sandbox.block))
            with _step("make user namespace"):
                namespace = None if nascent is None else nascent.finish()
                if namespace is not None:
                    cleanup.callback(os.close, namespace)
            with _step("write spec"):
                self._write_spec(sandbox, blueprint, namespace)
            init = launcher.go(agent_socket.boot_markers(paths) if blueprint.secret else ())
        with _step("set priority"):
            set_niceness(init, self.agent_niceness)
        with _step("set memory limit"):
            sandbox.group.limit_memory(UNLIMITED, AGENT)
        return init

    def make_groups(self, sandbox: LocalSandbox) -> None:
        group, memory = sandbox.group, self.memory(sandbox)
        group.create()
        group.limit_memory(memory.limit_bytes)
        group.limit_memory(memory.visible_bytes, AGENT)
        group.limit_tasks(_HOST_TASKS)

    def memory(self, sandbox: LocalSandbox) -> MemoryPlan:
        return plan.memory_plan(sandbox.memory_bytes, self.overhead_bytes)

    def _start_launcher(self, sandbox: LocalSandbox, blueprint: Blueprint) -> Launcher:
        netns = blueprint.netns
        return Launcher.start(
            self.argv(sandbox.paths, has_network=netns is not None),
            sandbox.paths,
            groups=self.launch_files(sandbox.group),
            entering=() if netns is None else self.entering(netns),
        )

    def _write_spec(self, sandbox: LocalSandbox, blueprint: Blueprint, namespace: int | None) -> None:
        boot = Boot(
            paths=sandbox.paths,
            image=blueprint.image,
            agent=blueprint.agent,
            block=sandbox.block,
            cgroup=sandbox.group.oci_path,
            max_open_files=self._max_open_files,
            netns=blueprint.netns,
            locked=mount.locked_options,
        )
        spec = json.dumps(plan.oci_spec(boot, self.isolation(sandbox, namespace)))
        (sandbox.paths.bundle / "config.json").write_text(spec, encoding="utf-8")

    async def listening(self, sandbox: LocalSandbox, init: Process) -> None:
        await agent_socket.wait(sandbox.paths, init)
        agent_socket.capture(sandbox.paths)

    async def dial(self, sandbox: LocalSandbox, credentials: Credentials, *, timeout_s: float) -> Link:
        with agent_socket.captured(sandbox.paths) as path:
            return await Link.dial(path, credentials, timeout_s=timeout_s)

    def seal(self, sandbox: LocalSandbox) -> None:
        agent_socket.seal(sandbox.paths)

    # --- at claim --------------------------------------------------------------------------------------------------

    def limit(self, sandbox: LocalSandbox, claim: Claim) -> None:
        sandbox.group.limit_cpus(claim.cpus)

    def mount_workspace(self, sandbox: LocalSandbox, source: Path) -> None:
        """/workspace is a slave of this mount, so what is mounted here appears there."""
        self.mount_shifted(sandbox, source, sandbox.paths.workspace)

    def mount_shifted(self, sandbox: LocalSandbox, source: Path, target: Path) -> None:
        self._roots.mount_shifted(sandbox, source, target)

    # --- its end ---------------------------------------------------------------------------------------------------

    def cause_of_death(self, sandbox: LocalSandbox) -> Death:
        return Death(detail=self.last_words(sandbox.paths) or "its init process ended")

    def last_words(self, paths: SandboxPaths) -> str:
        return tail(paths.log)

    def written(self, sandbox: LocalSandbox) -> Path:
        return sandbox.paths.disk / "upper"


def _make_directories(paths: SandboxPaths) -> None:
    overlay.make_directories(paths)
    paths.control.mkdir()
    for path in (paths.bundle, paths.state):
        path.mkdir(mode=0o700)


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxFailed(name, error) from error
