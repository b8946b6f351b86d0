"""Building and removing one sandbox: the ordered steps, each a call into `host`.

What `build` has done so far is undone by `remove`, which needs no memory of it: everything is found by name.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.substrate.local import control, plan
from k8e.substrate.local.blocks import base_id, sandbox_map
from k8e.substrate.local.disks import Disks
from k8e.substrate.local.host import disk, loop, mount, oom
from k8e.substrate.local.host.cgroup import AGENT, UNLIMITED, SandboxGroup
from k8e.substrate.local.host.process import Process, set_niceness
from k8e.substrate.local.host.userns import Nascent
from k8e.substrate.local.idmaps import IdMaps
from k8e.substrate.local.layout import SandboxPaths
from k8e.substrate.local.plan import Agent, Boot, Image
from k8e.substrate.local.runtimes.container import USERNS_LIMITS
from k8e.substrate.local.runtimes.oci import Launcher, OciRuntime

__all__ = ["Blueprint", "Builder", "make_directory", "remove"]

_HOST_TASKS = 16_384
"""For the whole sandbox; generous, because gVisor's own threads count and meeting it is fatal to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One sandbox to build."""

    paths: SandboxPaths
    group: SandboxGroup
    runtime: OciRuntime
    image: Image
    agent: Agent
    block: int
    memory_bytes: int
    disk_bytes: int
    secret: str = ""
    """By which its agent knows who may dial it; none where no agent runs."""
    netns: Path | None = None
    resolver: str = ""


def make_directory(paths: SandboxPaths, block: int) -> None:
    """Traversable for the sandbox's own root and nobody else: mountinfo tells every local user the path."""
    paths.root.mkdir(mode=0o700)
    os.chown(paths.root, 0, base_id(block))
    paths.root.chmod(0o710)
    for path in (paths.disk, paths.view, paths.rootfs, paths.layers, paths.workspace, paths.live, paths.control):
        path.mkdir()
    for path in (paths.bundle, paths.state):
        path.mkdir(mode=0o700)


class Builder:
    """Builds sandboxes; blocking, safe from several threads."""

    def __init__(self, disks: Disks, idmaps: IdMaps) -> None:
        self._disks = disks
        self._idmaps = idmaps
        self._max_open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def build(self, blueprint: Blueprint, signs: tuple[Path, ...] = ()) -> Process:
        """From an empty directory to a running init, which may make one of `signs` of it. Raises: SandboxFailed."""
        paths = blueprint.paths
        with ExitStack() as cleanup:
            with _step("make cgroups"):
                _make_groups(blueprint)
            with _step("start launcher"):
                launcher = Launcher.start(blueprint.runtime, blueprint.group, paths, blueprint.netns)
                cleanup.callback(launcher.abandon)
                nascent = _nascent_userns(blueprint, cleanup)
            with _step("make disk"):
                self._make_disk(blueprint)
            with _step("mount rootfs"):
                self._mount_rootfs(blueprint)
            if blueprint.image.usr:
                with _step("mount a writable /usr, which --allow-apt needs"):
                    self._mount_usr(blueprint)
            with _step("make control socket directory"):
                control.make(paths, base_id(blueprint.block))
                if blueprint.secret:
                    control.give_secret(paths, blueprint.secret, base_id(blueprint.block))
            with _step("make user namespace"):
                namespace = None if nascent is None else nascent.finish()
                if namespace is not None:
                    cleanup.callback(os.close, namespace)
            with _step("write spec"):
                self._write_spec(blueprint, namespace)
            init = launcher.go(signs)
        with _step("set priority"):
            set_niceness(init, blueprint.runtime.agent_niceness)
        with _step("set memory limit"):
            blueprint.group.limit_memory(UNLIMITED, AGENT)
        return init

    def _make_disk(self, blueprint: Blueprint) -> None:
        paths = blueprint.paths
        self._disks.make_sandbox_disk(paths.image, blueprint.disk_bytes)
        disk.mount_image(paths.image, paths.disk, is_new=True)
        if blueprint.resolver:
            _name_resolver(paths.disk / "upper" / "etc", blueprint.resolver)

    def _mount_rootfs(self, blueprint: Blueprint) -> None:
        paths, shift = blueprint.paths, self._idmaps.descriptor(blueprint.block)
        with mount.idmapped(paths.disk, shift) as tree:
            mount.move_to(tree, paths.view)
        _mount_layers(paths, paths.rootfs, blueprint.image.layers, shift, upper="upper", work="work")
        mount.bind(paths.view / "workspace", paths.workspace)
        mount.bind(paths.live, paths.live)
        for shared in (paths.workspace, paths.live):
            mount.make_shared(shared)

    def _mount_usr(self, blueprint: Blueprint) -> None:
        """What is written to it lies on the sandbox's disk, so the quota holds and the host's /usr stays as it is."""
        paths = blueprint.paths
        paths.usr.mkdir()
        for name in ("usr", "usr-work"):
            (paths.disk / name).mkdir()
        shift = self._idmaps.descriptor(blueprint.block)
        _mount_layers(paths, paths.usr, blueprint.image.usr, shift, upper="usr", work="usr-work")

    def _write_spec(self, blueprint: Blueprint, namespace: int | None) -> None:
        boot = Boot(
            paths=blueprint.paths,
            image=blueprint.image,
            agent=plan.with_image_env(blueprint.agent, blueprint.image),
            block=blueprint.block,
            cgroup=blueprint.group.oci_path,
            max_open_files=self._max_open_files,
            netns=blueprint.netns,
            is_inside_netns=blueprint.runtime.enters_netns,
            locked=mount.locked_options,
        )
        isolation = blueprint.runtime.isolation(blueprint.group, block=blueprint.block, userns=namespace)
        spec = json.dumps(plan.oci_spec(boot, isolation))
        (blueprint.paths.bundle / "config.json").write_text(spec, encoding="utf-8")


def _mount_layers(
    paths: SandboxPaths, target: Path, layers: tuple[Path, ...], shift: int, *, upper: str, work: str
) -> None:
    """Stack read-only layers, topmost first, under two directories of the sandbox's disk."""
    lower = []
    for number, layer in enumerate(layers):
        place = paths.layers / f"{upper}-{number}"
        place.mkdir()
        with mount.idmapped(layer, shift, attributes=("ro", "nosuid", "nodev")) as tree:
            mount.move_to(tree, place)
        lower.append(place)
    mount.overlay(target, lower=tuple(lower), upper=paths.view / upper, work=paths.view / work)
    for place in lower:
        # The overlay holds its layers itself; fewer mounts make every later namespace cheaper.
        mount.unmount(place)


def _name_resolver(etc: Path, resolver: str) -> None:
    """On the sandbox's own disk, above its image: no mount, and no link of the image's is followed."""
    etc.mkdir()
    (etc / "resolv.conf").write_text(f"nameserver {resolver}\noptions timeout:2 attempts:2\n", encoding="ascii")


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxFailed(name, error) from error


def _make_groups(blueprint: Blueprint) -> None:
    group = blueprint.group
    memory = plan.memory_plan(blueprint.memory_bytes, blueprint.runtime.overhead_bytes)
    group.create()
    group.limit_memory(memory.limit_bytes)
    group.limit_memory(memory.visible_bytes, AGENT)
    group.limit_tasks(_HOST_TASKS)
    if blueprint.runtime.handles_oom_inside:
        oom.prepare(group, memory.limit_bytes, memory.headroom_bytes)


def _nascent_userns(blueprint: Blueprint, cleanup: ExitStack) -> Nascent | None:
    """A fresh one per sandbox, even when its block is reused: keyrings and counters belong to the namespace."""
    if not blueprint.runtime.joins_userns:
        return None
    nascent = Nascent.start(sandbox_map(blueprint.block), USERNS_LIMITS, owner=base_id(blueprint.block))
    cleanup.callback(nascent.close)
    return nascent


def remove(paths: SandboxPaths, group: SandboxGroup) -> None:
    """End and remove whatever exists of a sandbox; repeatable. Raises: OSError, TimeoutError."""
    group.kill()
    mount.unmount_under(paths.root)
    loop.release(paths.root)
    group.remove()
    # SAFETY: no mount is left below, so this cannot reach into a sandbox's disk or the host's /usr.
    if mount.mounts_under(paths.root):
        raise OSError(f"mounts remain under {paths.root}")
    if paths.root.is_dir() and not paths.root.is_symlink():
        shutil.rmtree(paths.root)
    else:
        paths.root.unlink(missing_ok=True)
