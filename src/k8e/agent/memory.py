"""How often the kernel has killed a process of this sandbox for memory, where the host shows it.

Under gVisor the agent chooses whom to kill itself, and nothing is shown.
"""

from __future__ import annotations

import os

__all__ = ["kills", "prepare"]

_COUNTS = "/.k8e-memory"
"""The sandbox's own `memory.events` (cgroup v2) or `memory.oom_control` (v1), read-only."""
_BYTES = 4096


class _Counts:
    fd = -1


def prepare() -> None:
    """Called once, before any command can be in the way."""
    try:
        _Counts.fd = os.open(_COUNTS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return


def kills() -> int:
    """Since the sandbox began; 0 where it is not shown."""
    if _Counts.fd < 0:
        return 0
    try:
        words = os.pread(_Counts.fd, _BYTES, 0).split()
    except OSError:
        return 0
    return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0
