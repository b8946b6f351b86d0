"""What a test can leave behind on this host, as plain text lines, cheap enough to collect around every test.

A trace is ours when it names a directory below our root: mounts (of network namespaces, too), loop devices, processes
(of the egress daemon, too), sockets and open files all do. The links of sandboxes go with the router's namespace. A cgroup bears a mark,
or the mounts of its sandbox say below which directory it lives; a group with neither counts as ours.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trace", "collect", "nft_tables", "of_this_process"]

CGROUPS = Path("/sys/fs/cgroup")
GROUP_ROOT = "k8e"
NFT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """One thing that exists now; `place` is the directory that it belongs to, as far as it is known."""

    kind: str
    name: str
    place: str = ""


def _mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [line.split(" ", 5)[4] for line in lines]


def _mounts(root: str, points: list[str]) -> Iterator[Trace]:
    for point in points:
        if point.startswith(root):
            yield Trace("mount", point, point)


def _groups(points: list[str]) -> Iterator[Trace]:
    """Control groups below k8e/ in every hierarchy: hosts mount one (v2), several (v1), or both."""
    homes = {found[2]: found[1] for point in points if (found := re.match(r"(.*/sandboxes)/([^/]+)", point))}
    for root in (CGROUPS / GROUP_ROOT, *CGROUPS.glob(f"*/{GROUP_ROOT}")):
        for group in root.glob("*/"):
            yield Trace("cgroup", str(group), _mark(group) or homes.get(group.name, ""))


def _mark(group: Path) -> str:
    """Which data directory's it is, as whoever made it has noted."""
    try:
        return os.fsdecode(os.getxattr(group, "trusted.k8e.owner"))
    except OSError:
        return ""  # not marked, or gone between the two looks


def _loops(root: str) -> Iterator[Trace]:
    # Hundreds of devices without a file stay behind a crowd; opening is much quicker than a pattern over all of them.
    for entry in os.scandir("/sys/block"):
        try:
            backing = os.fsdecode(Path(entry.path, "loop", "backing_file").read_bytes()).strip()
        except OSError:
            continue  # no loop device, or it has no file
        if backing.startswith(root):
            yield Trace("loop device", f"{entry.name} on {backing}", backing)


def _place_in(root: str, text: str) -> str:
    """The first word of a command line or listing that lies below the root."""
    found = re.search(re.escape(root) + r"[^\s\0,:]*", text)
    return found[0] if found else ""


def _processes(root: str) -> Iterator[Trace]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        command = _command_of(entry.name)
        if place := _place_in(root, command):
            yield Trace("process", f"{entry.name} {command[:120]!r}", place)


def _sockets(root: str) -> Iterator[Trace]:
    table = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    for line in table.splitlines():
        if place := _place_in(root, line):
            yield Trace("unix socket", place, place)


def _open_files(root: str) -> Iterator[Trace]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if target.startswith(root):
            yield Trace("open file", f"fd {link.name} on {target}", target)


def _children(root: str) -> Iterator[Trace]:
    """Processes that the tests themselves started and did not wait for, zombies included."""
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text(encoding="ascii").split()
        except OSError:
            continue  # the thread ended between the two looks
        for pid in pids:
            command = _command_of(pid)
            yield Trace("child", f"{pid} {command[:120]!r}", _place_in(root, command))


def _command_of(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _namespaces() -> Iterator[Trace]:
    for name in Path("/run/netns").glob("k8e*"):
        yield Trace("network namespace", name.name)


def _links() -> Iterator[Trace]:
    """The host's ends of links to namespaces that tests make (`tests.support.upstreams`)."""
    for path in Path("/sys/class/net").glob(f"kt{os.getpid():x}-*"):
        yield Trace("network link", path.name)


def _sandboxes(root: str) -> Iterator[Trace]:
    """Directories of single sandboxes: workspaces, images and tools may stay, these may not."""
    for entry in Path(root).glob("*/sandboxes/*"):
        yield Trace("sandbox directory", str(entry), str(entry))


def collect(root: str) -> frozenset[Trace]:
    """Everything of ours that exists now."""
    points = _mount_points()
    return frozenset([
        *_mounts(root, points), *_groups(points), *_loops(root), *_processes(root), *_sockets(root),
        *_open_files(root), *_children(root), *_namespaces(), *_links(), *_sandboxes(root),
    ])  # fmt: skip


def of_this_process(root: str) -> frozenset[Trace]:
    """Only what belongs to the tests' own process, which takes a tenth of the time of everything."""
    return frozenset([*_open_files(root), *_children(root)])


def nft_tables() -> frozenset[Trace]:
    """Our rulesets in the host's namespace: a process each time, so only looked at once per session."""
    try:
        listing = subprocess.run(
            ["nft", "list", "tables"], capture_output=True, text=True, timeout=NFT_TIMEOUT_S, check=False
        )
    except OSError:
        return frozenset()
    return frozenset(Trace("nft table", line) for line in listing.stdout.splitlines() if " k8e" in line)
