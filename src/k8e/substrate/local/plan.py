"""Deciding how a sandbox is built: pure functions from what is asked and what the host has to an OCI spec.

Nothing here touches the machine, so every rule about what a sandbox may see can be read, printed and tested in one place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k8e.model import MIB
from k8e.substrate.local.blocks import sandbox_map
from k8e.substrate.local.host.userns import Extent
from k8e.substrate.local.layout import SandboxPaths

__all__ = [
    "MAX_OPEN_FILES",
    "SKELETON",
    "Agent",
    "Bind",
    "Boot",
    "Image",
    "Isolation",
    "Json",
    "MemoryPlan",
    "memory_plan",
    "oci_spec",
    "with_image_env",
]

Json = dict[str, Any]

AGENT_AT = "/.k8e"
RUN_AT = "/.k8e-run"
LIVE_AT = "/.k8e-mnt"
DOOR_AT = "/.k8e-cgroup"
MEMORY_AT = "/.k8e-memory"
TOOLS_AT = "/opt/k8e"
IMAGE_ENV = "K8E_IMAGE_ENV"
"""The agent's variable with the image's variables, as JSON (`k8e.agent.command`)."""

SKELETON = (
    "dev",
    "proc",
    "sys",
    "tmp",
    "root",
    "home",
    "run",
    "usr",
    "workspace",
    "opt/k8e",
    ".k8e",
    ".k8e-run",
    ".k8e-mnt",
)
"""Mount points and writable places that every root file system has, whatever its image brings."""

_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL",
)  # fmt: skip
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/proc/kpagecount", "/proc/kpageflags",
)  # fmt: skip
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_SHM_BYTES = 64 * MIB
_DEV_BYTES = MIB
MAX_OPEN_FILES = 65_536

_MIN_VISIBLE_BYTES = 128 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path shown inside."""

    source: Path
    target: str
    writable: bool = False
    slave: bool = False
    """Mounts made under it later on the host appear inside."""
    shared: bool = False
    """Others write there too, so gVisor must not cache it as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A prepared root file system: read-only layers, topmost first, and what is bound over them."""

    digest: str
    layers: tuple[Path, ...]
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the image sets for every command."""
    usr: tuple[Path, ...] = ()
    """Layers of a /usr that is the sandbox's own to write to, topmost first; none: /usr is as the others show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What runs as PID 1."""

    bundle: Path | None
    """The directory of its program, shown as /.k8e; None where it is the image's own."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def with_image_env(agent: Agent, image: Image) -> Agent:
    """The agent as it starts in a sandbox of this image: what the image sets is for commands, not for the agent itself."""
    return replace(agent, env={**agent.env, IMAGE_ENV: json.dumps(dict(image.env))}) if image.env else agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Where the runtimes differ."""

    capabilities: tuple[str, ...] = _CAPABILITIES
    seccomp: Json | None = None
    userns: str = ""
    """An existing user namespace to join; empty makes a new one."""
    is_inside_netns: bool = False
    """Whether the runtime is started inside the network namespace made for the sandbox, and stays there."""
    cgroup_namespace: bool = False
    door: Path | None = None
    """The cgroup file shown as /.k8e-cgroup."""
    memory_counts: Path | None = None
    """The cgroup file shown as /.k8e-memory, read-only: how often the kernel has killed for memory."""
    gofer_hints: bool = False
    inherits_limits: bool = False
    """Whether its runtime is started with the limits of the agent, and so need not set them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """Everything that decides one sandbox's spec."""

    paths: SandboxPaths
    image: Image
    agent: Agent
    block: int
    cgroup: str
    max_open_files: int
    netns: Path | None = None
    """The network namespace made for it; None is a new one with nothing but a loopback."""
    locked: Callable[[Path], tuple[str, ...]] = lambda _: ()
    """Options of a source's mount that a bind inside a user namespace must repeat: dropping one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a session's memory limit means for the groups around it."""

    limit_bytes: int
    """The session's memory plus what the isolation itself needs."""
    visible_bytes: int
    """What gVisor reads at boot and shows as MemTotal."""
    headroom_bytes: int
    """How far a hog may get beyond the limit until it is killed: half a second's worth, for a busy host."""


def memory_plan(memory_bytes: int, overhead_bytes: int) -> MemoryPlan:
    """The limit and its neighbours."""
    return MemoryPlan(
        limit_bytes=memory_bytes + overhead_bytes,
        visible_bytes=max(memory_bytes, _MIN_VISIBLE_BYTES),
        headroom_bytes=512 * MIB,
    )


def oci_spec(boot: Boot, isolation: Isolation) -> Json:
    """The runtime's config.json."""
    binds = _binds(boot, isolation)
    return {
        "ociVersion": "1.0.2",
        "process": _process(boot, isolation),
        "root": {"path": str(boot.paths.rootfs), "readonly": False},
        "hostname": "sandbox",
        "mounts": [*_kernel_mounts(), *(_bind_mount(bind, boot.locked(bind.source)) for bind in binds)],
        "annotations": _hints(binds) if isolation.gofer_hints else {},
        "linux": _linux(boot, isolation),
    }


def _binds(boot: Boot, isolation: Isolation) -> list[Bind]:
    paths = boot.paths
    binds = [
        *([Bind(source=paths.usr, target="/usr", writable=True)] if boot.image.usr else []),
        *boot.image.binds,
        *([Bind(source=boot.agent.bundle, target=AGENT_AT)] if boot.agent.bundle else []),
        Bind(source=paths.inbox, target=RUN_AT, writable=True),
        Bind(source=paths.live, target=LIVE_AT, writable=True, slave=True, shared=True),
        Bind(source=paths.workspace, target="/workspace", writable=True, slave=True, shared=True),
        Bind(source=paths.view / "tmp", target="/tmp", writable=True),  # noqa: S108  # inside the sandbox
    ]
    if isolation.door is not None:
        binds.append(Bind(source=isolation.door, target=DOOR_AT, writable=True))
    if isolation.memory_counts is not None:
        binds.append(Bind(source=isolation.memory_counts, target=MEMORY_AT))
    return binds


def _process(boot: Boot, isolation: Isolation) -> Json:
    names = [f"CAP_{name}" for name in isolation.capabilities]
    open_files = min(MAX_OPEN_FILES, boot.max_open_files)
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(boot.agent.argv),
        "env": [f"{key}={value}" for key, value in boot.agent.env.items()],
        "cwd": "/",
        "capabilities": {kind: names for kind in ("bounding", "effective", "permitted")},
        "rlimits": []
        if isolation.inherits_limits
        else [
            {"type": "RLIMIT_NOFILE", "hard": open_files, "soft": open_files},
            {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
        ],
        "noNewPrivileges": True,
    }


def _kernel_mounts() -> list[Json]:
    harmless = ["nosuid", "noexec", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": harmless},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", f"size={_DEV_BYTES}"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm",  # noqa: S108  # inside the sandbox
            "type": "tmpfs",
            "source": "shm",
            "options": [*harmless, "mode=1777", f"size={_SHM_BYTES}"],
        },
    ]


def _bind_mount(bind: Bind, locked: tuple[str, ...]) -> Json:
    # A recursive bind only where mounts are to appear: anywhere else it would drag in what the host has mounted below.
    options = ["rbind", "rslave"] if bind.slave else ["bind", "private"]
    options += ["nosuid", "nodev", "rw" if bind.writable else "ro"]
    options += [option for option in locked if option not in options]
    return {"destination": bind.target, "type": "bind", "source": str(bind.source), "options": options}


def _hints(binds: list[Bind]) -> dict[str, str]:
    """Tell runsc which mounts change under its feet; it may cache all others."""
    hints: dict[str, str] = {}
    for number, bind in enumerate(bind for bind in binds if bind.shared):
        prefix = f"dev.gvisor.spec.mount.shared{number}"
        hints |= {f"{prefix}.source": str(bind.source), f"{prefix}.type": "bind", f"{prefix}.share": "shared"}
    return hints


def _linux(boot: Boot, isolation: Isolation) -> Json:
    user: Json = {"type": "user", "path": isolation.userns} if isolation.userns else {"type": "user"}
    kinds = ["pid", "ipc", "uts", "mount", *(["cgroup"] if isolation.cgroup_namespace else [])]
    mapping = [_mapping(extent) for extent in sandbox_map(boot.block)]
    linux: Json = {
        "namespaces": [user, *({"type": kind} for kind in kinds), *_network(boot, isolation)],
        "uidMappings": mapping,
        "gidMappings": mapping,
        "cgroupsPath": boot.cgroup,
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    return linux if isolation.seccomp is None else {**linux, "seccomp": isolation.seccomp}


def _network(boot: Boot, isolation: Isolation) -> list[Json]:
    if boot.netns is None:
        return [{"type": "network"}]
    return [] if isolation.is_inside_netns else [{"type": "network", "path": str(boot.netns)}]


def _mapping(extent: Extent) -> Json:
    return {"containerID": extent.inside, "hostID": extent.outside, "size": extent.count}
