"""Control groups on v1, v2 and hybrid hosts, seen as one tree per sandbox.

`k8e/<sandbox>` carries the limits; its children `agent` and `cmd` carry the processes. A sandbox has a group
in *every* mounted hierarchy, controllers or not, so that nothing of it stays in the server's own groups
and dies with them.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from k8e.substrate.local.host import mount

__all__ = [
    "AGENT",
    "COMMANDS",
    "LAUNCH",
    "ROOT",
    "UNLIMITED",
    "Hierarchy",
    "SandboxGroup",
    "hierarchies",
    "leftover_groups",
]

ROOT = "k8e"
AGENT = "agent"
COMMANDS = "cmd"
LAUNCH = "launch"
UNLIMITED = -1

_PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000
_WANTED = ("memory", "cpu", "pids")
_V1_NAMES = frozenset(
    {"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls", "net_prio"}
    | {"perf_event", "pids", "rdma"}
)
_OWNER_ATTRIBUTE = "trusted.k8e.owner"
"""Servers with different data directories share the hierarchies; none may take another's sandbox for its leftover."""
_POLL_S = 0.001
_EMPTY_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One mounted cgroup tree."""

    path: Path
    version: int
    controllers: frozenset[str]


def _v1(entry: mount.MountEntry) -> Hierarchy:
    names = frozenset(option for option in entry.options.split(",") if option in _V1_NAMES)
    return Hierarchy(path=entry.target, version=1, controllers=names)


def _v2(entry: mount.MountEntry) -> Hierarchy:
    names = (entry.target / "cgroup.controllers").read_text(encoding="ascii").split()
    return Hierarchy(path=entry.target, version=2, controllers=frozenset(names))


def hierarchies() -> tuple[Hierarchy, ...]:
    """Every cgroup tree of this host that is its own mount, not a bind of a part."""
    found: dict[Path, Hierarchy] = {}
    for entry in mount.mounts():
        if entry.root != "/" or entry.fstype not in ("cgroup", "cgroup2"):
            continue
        found[entry.target] = _v1(entry) if entry.fstype == "cgroup" else _v2(entry)
    return tuple(found.values())


def leftover_groups(trees: tuple[Hierarchy, ...], owner: str) -> set[str]:
    """The sandboxes of `owner` that still have a group anywhere.

    A group that a crash left unmarked is nobody's here: its sandbox's directory, made before and removed after, tells.
    """
    groups = (child for tree in trees for child in (tree.path / ROOT).glob("*/"))
    return {group.name for group in groups if _owner(group) == owner}


def _owner(group: Path) -> str:
    try:
        return os.fsdecode(os.getxattr(group, _OWNER_ATTRIBUTE))
    except OSError:
        return ""


class SandboxGroup:
    """All groups of one sandbox. Every method is idempotent and blocking."""

    def __init__(self, trees: tuple[Hierarchy, ...], sandbox: str, *, owner: str) -> None:
        self._trees = trees
        self._name = sandbox
        self._owner = owner

    @property
    def oci_path(self) -> str:
        """What an OCI runtime is told, relative to each hierarchy."""
        return f"/{ROOT}/{self._name}/{AGENT}"

    def _group(self, tree: Hierarchy) -> Path:
        return tree.path / ROOT / self._name

    def _tree(self, controller: str) -> Hierarchy | None:
        return next((tree for tree in self._trees if controller in tree.controllers), None)

    def directory(self, controller: str, child: str = "") -> Path | None:
        """Where `controller` governs this sandbox; None if the host does not have it."""
        tree = self._tree(controller)
        return None if tree is None else self._group(tree) / child

    def version(self, controller: str) -> int:
        """1, 2, or 0 where the host lacks the controller."""
        tree = self._tree(controller)
        return 0 if tree is None else tree.version

    def create(self) -> None:
        """Make every group."""
        for tree in self._trees:
            group = self._group(tree)
            group.mkdir(parents=True, exist_ok=True)
            os.setxattr(group, _OWNER_ATTRIBUTE, os.fsencode(self._owner))
            (group / AGENT).mkdir(exist_ok=True)
            if tree.version == 2:
                _delegate(tree, group)
            elif "cpuset" in tree.controllers:
                _inherit_cpuset(tree.path, group / AGENT)
            if tree is self._commands_tree():
                for child in (COMMANDS, LAUNCH):
                    (group / child).mkdir(exist_ok=True)

    def _commands_tree(self) -> Hierarchy | None:
        return self._tree("pids")

    def procs_files(self) -> list[Path]:
        """Where a launcher writes itself if all it starts shall stay with it: out of every group of the server."""
        return [self._group(tree) / AGENT / "cgroup.procs" for tree in self._trees]

    def launch_files(self) -> list[Path]:
        """The same for a runtime that moves the sandbox by itself and wants its groups empty before."""
        tree = self._commands_tree()
        return [] if tree is None else [self._group(tree) / LAUNCH / "cgroup.procs"]

    def commands_door(self, owner: int) -> Path | None:
        """The one file through which the sandbox's root may move a command under its process limit."""
        tree = self._commands_tree()
        if tree is None:
            return None
        group = self._group(tree)
        door = group / COMMANDS / "cgroup.procs"
        os.chown(door, owner, owner)
        if tree.version == 2:
            # v2 also asks for write access to the common ancestor of where it was and where it goes.
            os.chown(group / "cgroup.procs", owner, owner)
        return door

    def limit_memory(self, limit_bytes: int, child: str = "") -> None:
        """May block for as long as reclaim takes when lowered below use."""
        group = self.directory("memory", child)
        if group is None:
            return
        if self.version("memory") == 2:
            _write(group / "memory.max", "max" if limit_bytes == UNLIMITED else limit_bytes)
            _write_if_there(group / "memory.swap.max", 0)
        else:
            _limit_memory_v1(group, limit_bytes)

    def limit_cpus(self, cpus: float) -> None:
        group = self.directory("cpu")
        if group is None:
            return
        quota = max(_MIN_QUOTA_US, int(cpus * _PERIOD_US))
        if self.version("cpu") == 2:
            _write(group / "cpu.max", f"{quota} {_PERIOD_US}")
        else:
            _write(group / "cpu.cfs_period_us", _PERIOD_US)
            _write(group / "cpu.cfs_quota_us", quota)

    def limit_tasks(self, tasks: int, child: str = "") -> None:
        group = self.directory("pids", child)
        if group is not None:
            _write(group / "pids.max", tasks)

    def memory_counts(self) -> Path | None:
        """The file that counts how often the kernel has killed for memory where the processes are."""
        group = self.directory("memory")
        if group is None:
            return None
        # v2 counts for all groups below, v1 in the victim's own group only.
        return group / "memory.events" if self.version("memory") == 2 else group / AGENT / "memory.oom_control"

    def memory_kills(self) -> int:
        """How often the kernel's OOM killer struck here, children included."""
        group, counts = self.directory("memory"), self.memory_counts()
        if group is None or counts is None:
            return 0
        kills = _counter(counts, "oom_kill")
        return kills if self.version("memory") == 2 else kills + _counter(group / "memory.oom_control", "oom_kill")

    def processes(self) -> set[int]:
        """Every process in any of the groups."""
        return {pid for tree in self._trees for pid in _processes(self._group(tree))}

    def kill(self) -> None:
        """SIGKILL everything and wait until the groups are empty. Raises: TimeoutError."""
        deadline = time.monotonic() + _EMPTY_TIMEOUT_S
        while pids := self.processes():
            for tree in self._trees:
                _write_if_there(self._group(tree) / "cgroup.kill", 1)
            for pid in pids:
                _kill(pid)
            if time.monotonic() > deadline:
                raise TimeoutError(f"cgroup {self._name}: processes survive SIGKILL: {sorted(pids)[:5]}")
            time.sleep(_POLL_S)

    def remove(self) -> None:
        """Remove the groups; they must be empty."""
        for tree in self._trees:
            _remove_tree(self._group(tree))


def _write(path: Path, value: object) -> None:
    # One unbuffered write: the kernel parses each write(2) on its own.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, f"write {value}: {error.strerror}", str(path)) from error
    finally:
        os.close(descriptor)


def _write_if_there(path: Path, value: object) -> None:
    try:
        _write(path, value)
    except FileNotFoundError:
        return


def _limit_memory_v1(group: Path, limit_bytes: int) -> None:
    """Without swap accounting there is only one file; with it, memsw may never be below the plain limit."""
    plain, with_swap = group / "memory.limit_in_bytes", group / "memory.memsw.limit_in_bytes"
    if not with_swap.exists():
        _write(plain, limit_bytes)
        return
    current = int(plain.read_text(encoding="ascii"))
    raising = limit_bytes == UNLIMITED or limit_bytes > current
    for path in (with_swap, plain) if raising else (plain, with_swap):
        _write(path, limit_bytes)


def _delegate(tree: Hierarchy, group: Path) -> None:
    """Let the limits' files exist in the sandbox's group and, for pids, in its children."""
    wanted = [f"+{name}" for name in _WANTED if name in tree.controllers]
    for path in (tree.path, group.parent) if wanted else ():
        _write(path / "cgroup.subtree_control", " ".join(wanted))
    inner = [name for name in wanted if name in ("+pids", "+memory")]
    if inner:
        _write(group / "cgroup.subtree_control", " ".join(inner))


def _inherit_cpuset(root: Path, group: Path) -> None:
    """A v1 cpuset starts empty and refuses processes until it has CPUs and memory nodes."""
    parts = group.relative_to(root).parts
    for depth in range(1, len(parts) + 1):
        path = root.joinpath(*parts[:depth])
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (path / name).read_text(encoding="ascii").strip():
                _write(path / name, (path.parent / name).read_text(encoding="ascii").strip())


def _counter(path: Path, key: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, OSError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


def _processes(group: Path) -> set[int]:
    pids: set[int] = set()
    for directory, _, _ in os.walk(group):
        try:
            pids.update(int(line) for line in (Path(directory) / "cgroup.procs").read_text(encoding="ascii").split())
        except (FileNotFoundError, OSError):
            continue
    return pids


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _remove_tree(group: Path) -> None:
    for directory, _, _ in os.walk(group, topdown=False):
        _remove_group(Path(directory))


def _remove_group(path: Path) -> None:
    """A group of freshly killed tasks is busy until the last of them has left it."""
    deadline = time.monotonic() + _EMPTY_TIMEOUT_S
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
