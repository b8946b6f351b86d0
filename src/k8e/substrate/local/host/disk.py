"""Quota by construction: a sparse ext4 image of exactly the size a sandbox may use.

`mkfs` runs once per size; each disk after that is a sparse copy of the few blocks it wrote.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path
from typing import IO

from k8e.substrate.local.host import loop, mount

__all__ = ["copy_sparse", "format_image", "mount_image"]

_FICLONE = 0x40049409
_BYTES_PER_INODE = 16 * 1024
_MIN_INODES = 1024
_MAX_INODES = 4_000_000
_CHUNK = 1 << 20
_MKFS_TIMEOUT_S = 120.0


def format_image(image: Path, size_bytes: int, *, skeleton: Path, journal: bool) -> None:
    """Write an ext4 file system holding `skeleton` into `image`."""
    inodes = min(_MAX_INODES, max(_MIN_INODES, size_bytes // _BYTES_PER_INODE))
    features = ("" if journal else "^has_journal,") + "^resize_inode"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    argv = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-N", str(inodes), "-O", features]
    argv += ["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-d", str(skeleton), str(image)]
    try:
        subprocess.run(argv, check=True, capture_output=True, timeout=_MKFS_TIMEOUT_S, text=True)
    except subprocess.CalledProcessError as error:
        raise OSError(errno.EIO, f"mkfs.ext4: {error.stderr.strip()}", str(image)) from error


def copy_sparse(reader: IO[bytes], target: Path) -> None:
    """Copy by reference where the file system can, else only the parts that hold data."""
    with target.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            _copy_extents(reader.fileno(), writer.fileno())


def _copy_extents(reader: int, writer: int) -> None:
    size = os.fstat(reader).st_size
    os.ftruncate(writer, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(reader, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = os.lseek(reader, start, os.SEEK_HOLE)
        _copy_range(reader, writer, start, position)


def _copy_range(reader: int, writer: int, start: int, end: int) -> None:
    while start < end:
        copied = _copy_chunk(reader, writer, start, min(_CHUNK, end - start))
        if copied == 0:
            raise OSError(errno.EIO, "the file shrank while it was copied")
        start += copied


def _copy_chunk(reader: int, writer: int, start: int, count: int) -> int:
    try:
        return os.copy_file_range(reader, writer, count, start, start)
    except OSError as error:
        # Between two file systems, and on some, the kernel does not copy by itself.
        if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return os.pwrite(writer, os.pread(reader, count, start), start)


def mount_image(image: Path, target: Path, *, is_new: bool = False) -> None:
    """Mount `image` at `target`; its loop device goes with the mount. One that `is_new` nobody can have mounted before."""
    with loop.attached(image, is_new=is_new) as device:
        # SAFETY: a sandbox writes files, never the image's blocks, so the kernel parses only what it wrote itself.
        mount.mount(str(device), target, "ext4", flags=("nosuid", "nodev", "noatime"), options="errors=continue")
