"""Learning of memory exhaustion before the kernel refuses any, so that the hog can be chosen by who knows it.

gVisor's kernel, its tasks and its application share one group. The host's OOM killer would take the whole sandbox; and
with killing switched off only a page fault waits for memory: whatever else the kernel needs on a task's behalf, the
frame of a signal or a mapping, it refuses, and gVisor's kernel dies of that. So the hard limit lies a headroom above the
real one, and the hog is killed on its way from the one to the other: v1 tells when the real limit is crossed, v2 slows
whoever goes beyond it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.substrate.local.host import inotify
from k8e.substrate.local.host.cgroup import AGENT, SandboxGroup
from k8e.substrate.local.host.descriptors import readable

__all__ = ["lend", "prepare", "restore", "wait"]

_NEARLY = 0.95
_PATIENCE_S = 3.0
_PAUSE_S = 0.005
_LENT_BYTES = 128 * 2**20


def prepare(group: SandboxGroup, limit_bytes: int, headroom_bytes: int) -> None:
    """Put the hard limit where nobody should come; who does waits there (v1), or was slowed down long before (v2)."""
    directory = group.directory("memory")
    if directory is None:
        return
    group.limit_memory(limit_bytes + headroom_bytes)
    if group.version("memory") == 1:
        (directory / "memory.oom_control").write_text("1", encoding="ascii")
    else:
        _throttle_at(directory, limit_bytes)


async def wait(group: SandboxGroup, limit_bytes: int) -> None:
    """Return when the sandbox is out of memory, at once if it already is; never on a host without the controller."""
    directory = group.directory("memory")
    if directory is None:
        await asyncio.Event().wait()
    elif group.version("memory") == 1:
        await _wait_v1(directory, limit_bytes)
    else:
        await inotify.until(directory / "memory.events", inotify.MODIFY, lambda: _is_above_v2(directory, limit_bytes))


def lend(group: SandboxGroup, limit_bytes: int, headroom_bytes: int) -> None:
    """Give more at once, so that nobody waits while the hog is being killed; raising never blocks."""
    directory = group.directory("memory")
    if directory is not None and group.version("memory") == 2:
        _throttle_at(directory, limit_bytes + _LENT_BYTES)
    else:
        group.limit_memory(limit_bytes + headroom_bytes + _LENT_BYTES)


def restore(group: SandboxGroup, limit_bytes: int, headroom_bytes: int) -> None:
    """Wait until what the hog held has come back, and take back what was lent; blocking.

    gVisor returns a dead hog's memory in the background. If it does not come back in time, the next wait takes that
    for what it is: still out of memory.
    """
    directory = group.directory("memory")
    if directory is None:
        return
    is_above = _is_above_v1 if group.version("memory") == 1 else _is_above_v2
    deadline = time.monotonic() + _PATIENCE_S
    while is_above(directory, limit_bytes) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    if group.version("memory") == 2:
        _throttle_at(directory, limit_bytes)
        return
    try:
        group.limit_memory(limit_bytes + headroom_bytes)
    except OSError as error:
        # It holds even more than that.
        if error.errno != errno.EBUSY:
            raise


# --- v1 ------------------------------------------------------------------------------------------------------------


async def _wait_v1(group: Path, limit_bytes: int) -> None:
    with _crossings(group, limit_bytes) as crossed:
        while True:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(crossed)
            if _usage_v1(group) < limit_bytes:
                await readable(crossed)
            elif await _stays_above_v1(group, limit_bytes):
                return


async def _stays_above_v1(group: Path, limit_bytes: int) -> bool:
    """Whether it would without what can be dropped: files' pages, and the kernel's records of them."""
    stat = _stat(group)
    if stat["rss"] + stat["shmem"] >= limit_bytes * _NEARLY:
        return True
    await asyncio.to_thread(_drop_caches_v1, group)
    if _is_above_v1(group, limit_bytes):
        return True
    await asyncio.sleep(_PAUSE_S)  # some may have to be written first
    return False


def _drop_caches_v1(group: Path) -> None:
    with contextlib.suppress(OSError):  # gone, or interrupted
        (group / "memory.force_empty").write_text("0", encoding="ascii")


def _usage_v1(group: Path) -> int:
    return int((group / "memory.usage_in_bytes").read_text(encoding="ascii"))


def _is_above_v1(group: Path, limit_bytes: int) -> bool:
    stat = _stat(group)
    return _usage_v1(group) - stat["active_file"] - stat["inactive_file"] >= limit_bytes


@contextmanager
def _crossings(group: Path, limit_bytes: int) -> Iterator[int]:
    """An eventfd that the kernel writes to whenever the use crosses the limit, and when the group is removed."""
    event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        usage = os.open(group / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
        try:
            (group / "cgroup.event_control").write_text(f"{event} {usage} {limit_bytes}", encoding="ascii")
        finally:
            os.close(usage)
        yield event
    finally:
        os.close(event)


# --- v2 ------------------------------------------------------------------------------------------------------------


def _throttle_at(directory: Path, limit_bytes: int) -> None:
    (directory / "memory.high").write_text(str(limit_bytes), encoding="ascii")


def _is_above_v2(group: Path, limit_bytes: int) -> bool:
    """Nearly: whoever is slowed down at the limit hardly reaches it."""
    stat = _stat(group)
    return stat["anon"] + stat["shmem"] >= limit_bytes * _NEARLY


def _stat(group: Path) -> dict[str, int]:
    """Of the group that has the processes: the kernel may tell of those above it only what was true seconds ago."""
    lines = (group / AGENT / "memory.stat").read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}
