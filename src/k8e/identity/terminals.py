"""Whether a process has a terminal, by the kernel's word."""

from __future__ import annotations

from pathlib import Path

__all__ = ["has_terminal"]

TTY_NR = 4
"""Where it stands in `stat`, counted behind the name, which may hold spaces and brackets of its own."""


def has_terminal(pid: int, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process has a controlling terminal; one that is gone, or not to be seen from here, has none."""
    try:
        told = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return False
    return told.rpartition(b")")[2].split()[TTY_NR] != b"0"
