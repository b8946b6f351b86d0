"""What this machine has for sandboxes, and what is left of it: two kernel files and one question to a file system."""

from __future__ import annotations

import os
from pathlib import Path

from k8e.model import Capacity

__all__ = ["read"]

_PROC = Path("/proc")
_PROCESSES_PART = 4
"""One sandbox may have this part of the processes that the kernel counts."""


def read(directory: Path, *, proc: Path = _PROC) -> Capacity:
    """As it is now, with the disk on which `directory` lies. Blocking, some ten microseconds."""
    memory = _memory(proc)
    disk = os.statvfs(directory)
    total = memory.get("MemTotal", 0)
    return Capacity(
        cpus=float(os.cpu_count() or 1),
        memory_bytes=total,
        processes=min(_number(proc, "pid_max"), _number(proc, "threads-max")) // _PROCESSES_PART,
        disk_bytes=disk.f_frsize * disk.f_blocks,
        # Kernels before 3.14 do not say what is available; what is free is the careful answer there.
        free_memory_bytes=memory.get("MemAvailable", memory.get("MemFree", total)),
        free_disk_bytes=disk.f_frsize * disk.f_bavail,
    )


def _memory(proc: Path) -> dict[str, int]:
    lines = (line.split() for line in (proc / "meminfo").read_text(encoding="ascii").splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if len(fields) > 1}


def _number(proc: Path, name: str) -> int:
    return int((proc / "sys/kernel" / name).read_text(encoding="ascii"))
