"""What a sandbox uses now, as its control groups count it. A file that is not there counts nothing."""

from __future__ import annotations

from pathlib import Path

from k8e.model import Usage
from k8e.substrate.local.host.cgroup import AGENT, COMMANDS, SandboxGroup

__all__ = ["read"]


def read(group: SandboxGroup) -> Usage:
    """Blocking: a handful of kernel files, a fraction of a millisecond."""
    return Usage(cpu_s=_cpu_s(group), memory_bytes=_memory_bytes(group), processes=_processes(group))


def _cpu_s(group: SandboxGroup) -> float:
    if group.version("cpu") == 2:
        return _field(group.directory("cpu"), "cpu.stat", "usage_usec") / 1e6
    return _number(group.directory("cpuacct"), "cpuacct.usage") / 1e9


def _memory_bytes(group: SandboxGroup) -> int:
    """Without the part of the page cache that the kernel would give away first: that is not what a limit runs into."""
    directory = group.directory("memory")
    if group.version("memory") == 2:
        held, cache = _number(directory, "memory.current"), _field(directory, "memory.stat", "inactive_file")
    else:
        held = _number(directory, "memory.usage_in_bytes")
        cache = _field(directory, "memory.stat", "total_inactive_file")
    return max(held - cache, 0)


def _processes(group: SandboxGroup) -> int:
    top = group.directory("pids")
    if top is None:
        return 0
    return sum(len(_text(top / child, "cgroup.procs").split()) for child in (AGENT, COMMANDS))


def _number(directory: Path | None, name: str) -> int:
    return int(_text(directory, name) or 0)


def _field(directory: Path | None, name: str, field: str) -> int:
    lines = (line.split() for line in _text(directory, name).splitlines())
    return next((int(value) for key, value in lines if key == field), 0)


def _text(directory: Path | None, name: str) -> str:
    if directory is None:
        return ""
    try:
        return (directory / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
