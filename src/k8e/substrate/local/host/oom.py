"""Learning of memory exhaustion before the kernel kills, so that the hog can be chosen by who knows it.

gVisor's kernel, its tasks and its application share one group; the host's OOM killer would take the whole sandbox. On v1
killing is switched off and an eventfd tells; on v2 `memory.high` throttles below the hard limit meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

from k8e.substrate.local.host import inotify
from k8e.substrate.local.host.cgroup import SandboxGroup
from k8e.substrate.local.host.descriptors import readable

__all__ = ["lend", "prepare", "restore", "wait"]

_NEARLY = 0.95
_PATIENCE_S = 3.0
_PAUSE_S = 0.01


def prepare(group: SandboxGroup, limit_bytes: int, headroom_bytes: int) -> None:
    """Let tasks that hit the limit wait (v1) or be slowed down (v2) instead of dying."""
    directory = group.directory("memory")
    if directory is None:
        return
    if group.version("memory") == 1:
        (directory / "memory.oom_control").write_text("1", encoding="ascii")
    else:
        group.limit_memory(limit_bytes + 2 * headroom_bytes)
        _throttle_at(directory, limit_bytes)


def _throttle_at(directory: Path, limit_bytes: int) -> None:
    (directory / "memory.high").write_text(str(limit_bytes), encoding="ascii")


def lend(group: SandboxGroup, limit_bytes: int, headroom_bytes: int) -> None:
    """Give a little more at once; raising never blocks, and every task of the sandbox is waiting for it."""
    directory = group.directory("memory")
    if directory is not None and group.version("memory") == 2:
        _throttle_at(directory, limit_bytes + headroom_bytes)
    else:
        group.limit_memory(limit_bytes + headroom_bytes)


async def wait(group: SandboxGroup) -> None:
    """Return when the sandbox is out of memory, at once if it already is; never on a host without the controller."""
    directory = group.directory("memory")
    if directory is None:
        await asyncio.Event().wait()
    elif group.version("memory") == 1:
        await _wait_v1(directory)
    else:
        await _wait_v2(directory)


def restore(group: SandboxGroup, limit_bytes: int) -> None:
    """Lower the limit again; blocking.

    A dead hog's memory comes back a little later: gVisor returns it in the background. If it does not come back
    in time the limit stays raised, which the next wait takes for what it is: still out of memory.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            _set_back(group, limit_bytes)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _set_back(group: SandboxGroup, limit_bytes: int) -> None:
    directory = group.directory("memory")
    if directory is not None and group.version("memory") == 2:
        _throttle_at(directory, limit_bytes)
    else:
        group.limit_memory(limit_bytes)


async def _wait_v1(group: Path) -> None:
    """Return when the group is out of memory, at once if it already is."""
    event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        _register(group, event)
        await readable(event)
    finally:
        os.close(event)


def _register(group: Path, event: int) -> None:
    control = os.open(group / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
    try:
        (group / "cgroup.event_control").write_text(f"{event} {control}", encoding="ascii")
    finally:
        os.close(control)


async def _wait_v2(group: Path) -> None:
    """Return when what cannot be reclaimed has reached `memory.high`."""
    await inotify.until(group / "memory.events", inotify.MODIFY, lambda: _is_exhausted(group))


def _is_exhausted(group: Path) -> bool:
    high = (group / "memory.high").read_text(encoding="ascii").strip()
    if high == "max":
        return False
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    held = int(stat["anon"]) + int(stat["shmem"])
    return held >= int(high) * _NEARLY
