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

__all__ = ["join", "prepare", "set_processes"]

_MOUNT = "/tmp/.k8e-cgroup"
_GROUP = "cmd"
_OWN_PROCESSES = 6


class _Group:
    """The commands' group, when there is one."""

    fd: Optional[int] = None


def prepare() -> None:
    """Make the group where the sentry counts; elsewhere the host does, and its cgroups are not ours to touch."""
    if "gvisor" not in os.uname().release:
        return
    from . import libc

    try:
        os.mkdir(_MOUNT, 0o700)
        libc.mount("cgroup", _MOUNT, "cgroup", 0, "pids")
    except OSError:
        _discard()
        return
    try:
        os.makedirs(os.path.join(_MOUNT, _GROUP), exist_ok=True)
        _Group.fd = os.open(os.path.join(_MOUNT, _GROUP), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        libc.unmount_lazily(_MOUNT)
        _discard()


def _discard() -> None:
    try:
        os.rmdir(_MOUNT)
    except OSError:
        pass


def join() -> None:
    """Called by a runner: it and all it starts count from now on."""
    _write("cgroup.procs", b"0")


def set_processes(count: int) -> None:
    """Allow commands this many processes, besides the runners and parked interpreters that wait among them."""
    _write("pids.max", b"%d" % (count + _OWN_PROCESSES))


def _write(name: str, data: bytes) -> None:
    if _Group.fd is not None:
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=_Group.fd)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
