"""The system calls that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os

__all__ = [
    "become_subreaper",
    "bind_mount",
    "drop_capabilities",
    "inotify_add",
    "inotify_open",
    "inotify_remove",
    "make_undumpable",
    "mount",
    "take_short_turns",
    "unmount_lazily",
]

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 40
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_RESET_ON_FORK = 1
_SLICE_NS = 100_000
_MS_BIND_REC = 4096 | 16384
_MNT_DETACH = 2
_IN_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def make_undumpable() -> None:
    """Let only CAP_SYS_PTRACE trace this process or touch its memory, until it executes something."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def take_short_turns() -> None:
    """Ask the scheduler for slices of 0.1 ms, so that a wake-up need not wait for the end of somebody's 3 ms.

    It gives no more time than before, and children do not inherit it. Older kernels ignore the wish.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = _SchedAttr(ctypes.sizeof(_SchedAttr), 0, _SCHED_RESET_ON_FORK, 0, 0, _SLICE_NS, 0, 0)
        _libc.syscall(number, 0, ctypes.byref(attributes), 0)


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities(keep: int) -> None:
    """Give up every capability outside the bit set `keep`, for this process and all it starts."""
    header, data = _CapHeader(_CAPABILITY_VERSION_3, 0), (_CapData * 2)()
    _check(_libc.capget(ctypes.byref(header), data), "capget")
    held = data[0].permitted | data[1].permitted << 32
    if not held & ~keep:
        return
    # The bounding set first: dropping from it needs CAP_SETPCAP, and root would regain the rest at the next exec.
    for capability in range(_LAST_CAPABILITY + 1):
        if not keep >> capability & 1:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    for index, shift in ((0, 0), (1, 32)):
        allowed = keep >> shift & 0xFFFFFFFF
        data[index].effective &= allowed
        data[index].permitted &= allowed
        data[index].inheritable &= allowed
    _check(_libc.capset(ctypes.byref(header), data), "capset")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    arguments = [ctypes.c_char_p(os.fsencode(text)) for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), ctypes.c_char_p(os.fsencode(options))), target)


def bind_mount(source: str, target: str) -> None:
    """Show the tree at `source` at `target` as well."""
    mount(source, target, "none", _MS_BIND_REC)


def unmount_lazily(target: str) -> None:
    """Take a mount out of the tree; open descriptors keep working."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), target)


def inotify_open() -> int:
    """A new non-blocking inotify descriptor."""
    return _check(_libc.inotify_init1(_IN_CLOEXEC_NONBLOCK), "inotify")


def inotify_add(fd: int, path: bytes, mask: int) -> int:
    """Watch a path; its watch number."""
    return _check(_libc.inotify_add_watch(fd, path, ctypes.c_uint32(mask)), os.fsdecode(path))


def inotify_remove(fd: int, watch: int) -> None:
    """Stop watching; a watch that is gone already is fine."""
    _libc.inotify_rm_watch(fd, watch)
