"""Reading /proc and ending whole process trees."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Set, Tuple

__all__ = [
    "all_pids",
    "children",
    "command_line",
    "descendants",
    "kill_tree",
    "parent_of",
    "resident_bytes",
    "send",
    "send_group",
    "stat_of",
]

_MAX_ROUNDS = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def all_pids() -> List[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def stat_of(pid: int) -> Optional[Tuple[str, str, List[str]]]:
    """comm, state and the fields from ppid on; None when the process is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb", buffering=0) as file:
            text = os.fsdecode(file.read(4096))
    except OSError:
        return None
    # comm may hold spaces and parentheses: the last ")" ends it.
    start, end = text.find("("), text.rfind(")")
    rest = text[end + 2 :].split()
    return text[start + 1 : end], rest[0], rest[1:]


def command_line(pid: int, most: int) -> str:
    """The arguments, joined by spaces, of which at most so many bytes; nothing of a zombie, or of what is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb", buffering=0) as file:
            data = file.read(most)
    except OSError:
        return ""
    # A parked interpreter has more NULs behind its last argument than the one that ends it.
    return os.fsdecode(data.rstrip(b"\0").replace(b"\0", b" "))


def parent_of(pid: int) -> int:
    """The parent's pid, 0 when unknown."""
    stat = stat_of(pid)
    return int(stat[2][0]) if stat else 0


def resident_bytes(pid: int) -> int:
    """Memory that the process holds now."""
    stat = stat_of(pid)
    return int(stat[2][20]) * _PAGE_BYTES if stat else 0


def children(pid: int) -> List[int]:
    """Direct children, of all threads."""
    found: List[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb", buffering=0) as file:
                found += map(int, file.read(1 << 20).split())
    except OSError:
        if os.path.isdir("/proc/%d" % pid) and not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return _tree().get(pid, [])
    return found


def _tree() -> Dict[int, List[int]]:
    """Children by parent, for kernels without CONFIG_PROC_CHILDREN."""
    tree: Dict[int, List[int]] = {}
    for pid in all_pids():
        tree.setdefault(parent_of(pid), []).append(pid)
    return tree


def descendants(pid: int) -> Iterator[int]:
    """Everything below `pid`, parents before children."""
    pending = children(pid)
    seen: Set[int] = set()
    while pending:
        child = pending.pop()
        if child not in seen:
            seen.add(child)
            yield child
            pending += children(child)


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def send_group(group: int, number: int) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(group, number)
    except OSError:
        pass


def kill_tree(root: int, spare: Optional[Set[int]] = None) -> bool:
    """Kill everything below `root`; whether nothing alive was left at the end.

    By process group, because a fork bomb outruns whoever kills one by one: a group dies at once. Whatever is below
    `root` began a session of its own, so its groups have no other members.
    """
    own = os.getpgrp()
    for _ in range(_MAX_ROUNDS):
        alive = {pid: group for pid, group in _groups(root).items() if not (spare and pid in spare)}
        if not alive:
            return True
        for group in set(alive.values()) - {own}:
            send_group(group, signal.SIGKILL)
        for pid in alive:
            send(pid, signal.SIGKILL)
    return False


def _groups(root: int) -> Dict[int, int]:
    """The living descendants, each with its process group."""
    found = {}
    for pid in descendants(root):
        stat = stat_of(pid)
        if stat is not None and stat[1] not in "ZX":
            found[pid] = int(stat[2][1])
    return found
