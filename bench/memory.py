"""Memory as the kernel shares it out: proportional set size, so a page used by ten counts a tenth for each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["members", "pss_bytes", "tree"]


def pss_bytes(pids: Iterable[int]) -> int:
    """The sum over processes; one that is gone counts nothing."""
    return sum(map(_pss, pids))


def members(cgroup: str) -> set[int]:
    """Every process below a control group of that name, in any hierarchy."""
    found: set[int] = set()
    for file in Path("/sys/fs/cgroup").rglob(f"{cgroup}/**/cgroup.procs"):
        found |= set(map(int, file.read_text().split()))
    return found


def tree(roots: Iterable[int], *, name: str) -> set[int]:
    """A container's processes: the known ones, those that name it on their command line, and all below these."""
    parents: dict[int, int] = {}
    named: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text()
            line = (directory / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(directory.name)] = int(stat.rpartition(")")[2].split()[1])
        if name.encode() in line:
            named.add(int(directory.name))
    found = {*roots, *named}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
