"""Mounts by system call: no `mount` command, no parsing of its output, no race between path and object.

The new mount API (open_tree, mount_setattr, move_mount) is the only way to an idmapped mount; the old one
is used where it says the same in fewer calls. Every failure is an OSError that names the call and target.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MountEntry",
    "bind",
    "idmapped",
    "locked_options",
    "make_shared",
    "mount",
    "mounts",
    "mounts_under",
    "move_to",
    "overlay",
    "tmpfs",
    "unmount",
    "unmount_under",
]

# The numbers are the same on every architecture since Linux 5.1 unified new system calls.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4

_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_NOEXEC = 0x8
_MOUNT_ATTR_IDMAP = 0x100000
_ATTRIBUTES = {
    "ro": _MOUNT_ATTR_RDONLY,
    "nosuid": _MOUNT_ATTR_NOSUID,
    "nodev": _MOUNT_ATTR_NODEV,
    "noexec": _MOUNT_ATTR_NOEXEC,
}

_MS_RDONLY = 0x1
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_NOEXEC = 0x8
_MS_REMOUNT = 0x20
_MS_NOATIME = 0x400
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MS_SHARED = 0x100000
_FLAGS = {
    "ro": _MS_RDONLY,
    "nosuid": _MS_NOSUID,
    "nodev": _MS_NODEV,
    "noexec": _MS_NOEXEC,
    "noatime": _MS_NOATIME,
    "remount": _MS_REMOUNT,
}
_LOCKED = {"noexec": os.ST_NOEXEC, "noatime": os.ST_NOATIME, "nodiratime": os.ST_NODIRATIME}
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MountEntry:
    """One line of mountinfo: where, what, and from which device."""

    target: Path
    root: str
    """The part of the file system that is mounted; "/" is all of it."""
    fstype: str
    source: str
    options: str


def _check(result: int, call: str, target: Path | str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", str(target))
    return result


def _syscall(call: str, target: Path | str, number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), call, target)


def mount(source: str, target: Path, fstype: str, *, flags: tuple[str, ...] = (), options: str = "") -> None:
    """mount(2) with flags by name."""
    bits = sum(_FLAGS[name] for name in flags)
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(bits), options.encode() or None
    )
    _check(result, f"mount {fstype}", target)


def tmpfs(target: Path, *, size_bytes: int, inodes: int, mode: int = 0o755) -> None:
    """A small private tmpfs on which nothing can be executed, elevated or opened as a device."""
    options = f"size={size_bytes},nr_inodes={inodes},mode={mode:o}"
    mount("k8e", target, "tmpfs", flags=("nosuid", "nodev", "noexec"), options=options)


def overlay(target: Path, *, lower: tuple[Path, ...], upper: Path, work: Path) -> None:
    """Stack `lower` (topmost first) under a writable `upper`."""
    layers = ":".join(str(path) for path in lower)
    # A crash loses the sandbox anyway, so its upper layer needs no syncfs on every fsync.
    options = f"lowerdir={layers},upperdir={upper},workdir={work},volatile"
    mount("k8e", target, "overlay", flags=("nosuid", "nodev"), options=options)


def bind(source: Path, target: Path) -> None:
    """The same directory or file in a second place."""
    result = _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)
    _check(result, "bind", target)


def make_shared(target: Path) -> None:
    """Mounts made under `target` from now on appear in its slaves: how a running sandbox is given a mount."""
    # Private first: a peer group inherited from a shared parent would carry our mounts to strangers.
    for propagation in (_MS_PRIVATE, _MS_SHARED):
        _check(_libc.mount(None, os.fsencode(target), None, ctypes.c_ulong(propagation), None), "propagation", target)


@contextmanager
def idmapped(source: Path, userns_fd: int, *, attributes: tuple[str, ...] = ("nosuid", "nodev")) -> Iterator[int]:
    """A detached clone of `source` whose owners are shifted through `userns_fd`; `move_to` puts it somewhere."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    tree = _syscall("open_tree", source, _SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(source), ctypes.c_uint(flags))
    try:
        attr = _MountAttr(
            attr_set=_MOUNT_ATTR_IDMAP | sum(_ATTRIBUTES[name] for name in attributes), userns_fd=userns_fd
        )
        _syscall(
            "mount_setattr",
            source,
            _SYS_MOUNT_SETATTR,
            tree,
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH),
            ctypes.byref(attr),
            ctypes.c_size_t(ctypes.sizeof(attr)),
        )
        yield tree
    finally:
        os.close(tree)


def move_to(tree: int, target: Path) -> None:
    """Attach a detached mount at `target`."""
    _syscall(
        "move_mount",
        target,
        _SYS_MOVE_MOUNT,
        tree,
        b"",
        _AT_FDCWD,
        os.fsencode(target),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )


def locked_options(path: Path) -> tuple[str, ...]:
    """What a user namespace may not take away from the mount under `path`."""
    flags = os.statvfs(path).f_flag
    return tuple(name for name, bit in _LOCKED.items() if flags & bit)


def unmount(target: Path) -> bool:
    """Detach the topmost mount at `target` at once, even if busy; False if there is none."""
    # SAFETY: UMOUNT_NOFOLLOW, so a symlink planted at the target cannot redirect us to a host mount.
    if _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return False
    raise OSError(number, f"umount: {os.strerror(number)}", str(target))


def _unescape(field: str) -> str:
    """mountinfo writes blank, tab, newline and backslash as three octal digits."""
    return os.fsdecode(field.encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1"))


def _entry(line: str) -> MountEntry:
    left, _, right = line.partition(" - ")
    fields = left.split(" ")
    fstype, source, options = right.rstrip("\n").split(" ")[:3]
    return MountEntry(
        target=Path(_unescape(fields[4])),
        root=_unescape(fields[3]),
        fstype=fstype,
        source=_unescape(source),
        options=options,
    )


def mounts() -> list[MountEntry]:
    """The mount table of this process, in mount order."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:  # noqa: PTH123
        return [_entry(line) for line in table]


def mounts_under(directory: Path) -> list[MountEntry]:
    """Every mount at or below `directory`, in mount order."""
    return [entry for entry in mounts() if entry.target.is_relative_to(directory)]


def unmount_under(directory: Path) -> None:
    """Detach every mount at or below `directory`, last mounted first; repeatable."""
    for entry in reversed(mounts_under(directory)):
        unmount(entry.target)
