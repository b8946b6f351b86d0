"""How many processes commands may have, where the host cannot count them.

Under `container` the host's cgroup does it and this does nothing. Under gVisor the host sees the sentry's threads
instead of processes, so the sentry's own cgroupfs does: mounted once, held by descriptor, and taken out of the tree
again before any command runs, so that no command can reach it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

__all__ = ["allow_forks", "forbid_forks", "free_processes", "join", "prepare", "set_processes"]

_MOUNT = "/tmp/.k8e-cgroup"
_GROUP = "cmd"
_OWN_PROCESSES = 6
_UNLIMITED = 1 << 30


class _Group:
    """The commands' group, when there is one.

    Its files are held open: among hundreds of processes of a fork bomb every call of ours waits its turn, so there
    must be few.
    """

    procs: Optional[int] = None
    current = -1
    limit = -1
    allowed = 0


def prepare() -> None:
    """Make the group where the sentry counts; elsewhere the host does, and its cgroups are not ours to touch."""
    if "gvisor" not in os.uname().release:
        return
    from . import libc

    if not (_mount("cgroup2", "") or _mount("cgroup", "pids")):
        return
    try:
        _delegate()
        os.makedirs(os.path.join(_MOUNT, _GROUP), exist_ok=True)
        _Group.limit = _open("pids.max", os.O_WRONLY)
        _Group.current = _open("pids.current", os.O_RDONLY)
        _Group.procs = _open("cgroup.procs", os.O_WRONLY)
    finally:
        libc.unmount_lazily(_MOUNT)
        _discard()


def _mount(kind: str, data: str) -> bool:
    """Whether the sentry has this kind: v2, where every fork is counted, or v1 of older releases."""
    from . import libc

    try:
        os.mkdir(_MOUNT, 0o700)
        libc.mount("cgroup", _MOUNT, kind, 0, data)
    except OSError:
        _discard()
        return False
    return True


def _delegate() -> None:
    """v2 counts in a group only where its parent says so; v1 has no such file."""
    try:
        fd = os.open(os.path.join(_MOUNT, "cgroup.subtree_control"), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"+pids")
    finally:
        os.close(fd)


def _open(name: str, mode: int) -> int:
    return os.open(os.path.join(_MOUNT, _GROUP, name), mode | os.O_CLOEXEC)


def _discard() -> None:
    try:
        os.rmdir(_MOUNT)
    except OSError:
        pass


def join() -> None:
    """Called by a runner: it and all it starts count from now on."""
    if _Group.procs is not None:
        os.write(_Group.procs, b"0")


def set_processes(count: int) -> None:
    """Allow commands this many processes, besides the runners and parked interpreters that wait among them."""
    _Group.allowed = count + _OWN_PROCESSES
    allow_forks()


def free_processes() -> int:
    """How many more there may be: exact where the sentry counts, else without threads, which the host counts too."""
    if not _Group.allowed:
        return _UNLIMITED
    if _Group.procs is None:
        return _Group.allowed - sum(name.isdigit() for name in os.listdir("/proc"))
    return _Group.allowed - int(os.pread(_Group.current, 32, 0))


def forbid_forks() -> None:
    """Until `allow_forks`, no command can start a process: a bomb that is being killed cannot outrun us."""
    if _Group.procs is not None:
        os.pwrite(_Group.limit, b"1", 0)


def allow_forks() -> None:
    """Back to what commands are allowed."""
    if _Group.procs is not None and _Group.allowed:
        os.pwrite(_Group.limit, b"%d" % _Group.allowed, 0)
