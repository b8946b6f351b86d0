"""A mounted ext4 image from outside: what it holds, how much more it may take, and what it no longer needs.

ext4 lets its pool of reserved blocks be changed while it is mounted. Space is taken at the moment of a write, not when the
kernel gets round to writing it back, so a file system whose free blocks are all reserved answers ENOSPC to `write` itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskUsage", "MountedDisk", "mounted_disk"]

_FITRIM = 0xC0185879
_LEAST_HOLE = 64 * 1024
"""Smaller pieces stay: giving each of them back costs the host more than it gains."""
_INODE_BYTES = 256
_SECTOR = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """How much of a disk is used, in bytes, inside and on the host."""

    used: int
    """Taken inside, also by what is still on its way to the image."""
    backed: int
    """What the image takes of the host's disk."""
    free: int
    """What could be taken inside, if there were no bound."""

    @property
    def promised(self) -> int:
        """What the host's disk still has to take for what was written inside."""
        return max(self.used - self.backed, 0)

    @property
    def stale(self) -> int:
        """What the host's disk holds for nothing."""
        return max(self.backed - self.used, 0)


class MountedDisk:
    """A mounted image. The open descriptor keeps it mounted, so that its device number stays its own."""

    def __init__(self, descriptor: int, image: Path) -> None:
        self._descriptor = descriptor
        self.image = image

    def usage(self) -> DiskUsage:
        """Raises: OSError."""
        inside, outside = os.fstatvfs(self._descriptor), self.image.stat()
        blocks, inodes = inside.f_blocks - inside.f_bfree, inside.f_files - inside.f_ffree
        return DiskUsage(
            used=blocks * inside.f_frsize + inodes * _INODE_BYTES,
            backed=outside.st_blocks * _SECTOR,
            free=inside.f_bfree * inside.f_frsize,
        )

    def let_grow(self, most: int, free: int) -> None:
        """Let it take `most` bytes more than when so much was free, and then answer that it is full. Raises: OSError."""
        inside = os.fstatvfs(self._descriptor)
        # What the kernel itself sets at mount, for blocks that a write already under way may need.
        usual = min(inside.f_blocks // 50, 4096)
        spare = (free - most) // inside.f_frsize
        wanted = inside.f_blocks - 1 if most <= 0 else max(usual, spare)
        # What is free for all but not to be had is the pool, as long as there is anything to be had.
        if not inside.f_bavail or inside.f_bfree - inside.f_bavail != wanted:
            self._pool().write_text(f"{wanted}\n", encoding="ascii")

    def trim(self, start: int, length: int) -> bool:
        """Give back to the host what was freed inside this part; whether there is more after it. Raises: OSError."""
        size = self.image.stat().st_size
        if start < size:
            fcntl.ioctl(self._descriptor, _FITRIM, struct.pack("QQQ", start, length, _LEAST_HOLE))
        return start + length < size

    def _pool(self) -> Path:
        device = os.fstat(self._descriptor).st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").readlink().name
        return Path("/sys/fs/ext4", name, "reserved_clusters")


@contextlib.contextmanager
def mounted_disk(mountpoint: Path, image: Path) -> Iterator[MountedDisk | None]:
    """What is mounted there; None where nothing is (any more)."""
    try:
        descriptor = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield None
        return
    try:
        yield MountedDisk(descriptor, image) if _is_mounted(descriptor, image) else None
    finally:
        os.close(descriptor)


def _is_mounted(descriptor: int, image: Path) -> bool:
    """A directory on which nothing is mounted lies on the file system that the image lies on."""
    try:
        return os.fstat(descriptor).st_dev != image.stat().st_dev
    except OSError:
        return False
