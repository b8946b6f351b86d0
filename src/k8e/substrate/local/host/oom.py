"""Learning of memory exhaustion before the kernel kills, so that the hog can be chosen by who knows it.

gVisor's kernel, its tasks and its application share one group; the host's OOM killer would take the whole sandbox. On v1
killing is switched off and an eventfd tells; on v2 `memory.high` throttles below the hard limit meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from k8e.substrate.local.host import inotify

__all__ = ["disable_kill", "throttle_at", "wait_v1", "wait_v2"]

_NEARLY = 0.95


def disable_kill(group: Path) -> None:
    """v1: tasks that hit the limit wait instead of dying."""
    (group / "memory.oom_control").write_text("1", encoding="ascii")


def throttle_at(group: Path, limit_bytes: int) -> None:
    """v2: tasks above it are slowed down, and `memory.events` says so."""
    (group / "memory.high").write_text(str(limit_bytes), encoding="ascii")


async def wait_v1(group: Path) -> None:
    """Return when the group is out of memory, at once if it already is."""
    event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        _register(group, event)
        await _readable(event)
    finally:
        os.close(event)


def _register(group: Path, event: int) -> None:
    control = os.open(group / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
    try:
        (group / "cgroup.event_control").write_text(f"{event} {control}", encoding="ascii")
    finally:
        os.close(control)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def wait_v2(group: Path) -> None:
    """Return when what cannot be reclaimed has reached `memory.high`."""
    await inotify.until(group / "memory.events", inotify.MODIFY, lambda: _is_exhausted(group))


def _is_exhausted(group: Path) -> bool:
    high = (group / "memory.high").read_text(encoding="ascii").strip()
    if high == "max":
        return False
    stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    held = int(stat["anon"]) + int(stat["shmem"])
    return held >= int(high) * _NEARLY
