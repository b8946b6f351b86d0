"""Loop devices by ioctl: a file becomes a block device that disappears with its last user."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["attached", "backing_files", "release"]

_LOOP_CLR_FD = 0x4C01
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CTL_GET_FREE = 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
_ATTEMPTS = 64
_BLOCK_BYTES = 4096


class _Info64(ctypes.Structure):
    _fields_ = (
        ("lo_device", ctypes.c_uint64),
        ("lo_inode", ctypes.c_uint64),
        ("lo_rdevice", ctypes.c_uint64),
        ("lo_offset", ctypes.c_uint64),
        ("lo_sizelimit", ctypes.c_uint64),
        ("lo_number", ctypes.c_uint32),
        ("lo_encrypt_type", ctypes.c_uint32),
        ("lo_encrypt_key_size", ctypes.c_uint32),
        ("lo_flags", ctypes.c_uint32),
        ("lo_file_name", ctypes.c_uint8 * 64),
        ("lo_crypt_name", ctypes.c_uint8 * 64),
        ("lo_encrypt_key", ctypes.c_uint8 * 32),
        ("lo_init", ctypes.c_uint64 * 2),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("fd", ctypes.c_uint32),
        ("block_size", ctypes.c_uint32),
        ("info", _Info64),
        ("reserved", ctypes.c_uint64 * 8),
    )


def _configure(device: int, backing: int) -> bool:
    """False if somebody else took the device between GET_FREE and now."""
    config = _Config(fd=backing, block_size=_BLOCK_BYTES, info=_Info64(lo_flags=_LO_FLAGS_AUTOCLEAR))
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, config)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _claim(control: int, backing: int) -> tuple[int, Path]:
    for _ in range(_ATTEMPTS):
        path = Path(f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}")
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            configured = _configure(device, backing)
        except OSError:
            os.close(device)
            raise
        if configured:
            return device, path
        os.close(device)
    raise OSError(errno.EBUSY, "no free loop device", "/dev/loop-control")


@contextlib.contextmanager
def attached(image: Path, *, is_new: bool = False) -> Iterator[Path]:
    """A device over `image` while in the block and for as long as anything mounts it.

    A device that already has the image is used again: two devices over one file would be two file systems over
    the same blocks, each destroying the other's. Looking for one takes longer the more sandboxes there are or ever
    were, so not for an image that `is_new`.
    """
    device, path = (None if is_new else _held(image)) or _attach(image)
    try:
        yield path
    finally:
        os.close(device)


def _attach(image: Path) -> tuple[int, Path]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _claim(control, backing)
    finally:
        os.close(backing)
        os.close(control)


def _held(image: Path) -> tuple[int, Path] | None:
    for path, backing in backing_files().items():
        if backing != str(image):
            continue
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # Open now, so it cannot vanish; but it may have changed hands before.
        if backing_files().get(path) == str(image):
            return device, path
        os.close(device)
    return None


def backing_files() -> dict[Path, str]:
    """Every attached loop device and the file under it, as the kernel tells it (`(deleted)` included)."""
    found: dict[Path, str] = {}
    # The kernel keeps every device that there ever was; most have no file, and opening is the quickest way to see that.
    for entry in os.scandir("/sys/block"):
        if entry.name.startswith("loop"):
            with contextlib.suppress(OSError):
                backing = Path(entry.path, "loop", "backing_file").read_bytes()
                found[Path("/dev", entry.name)] = os.fsdecode(backing).rstrip("\n")
    return found


def release(directory: Path) -> None:
    """Detach every device whose file lies under `directory`; a mounted one goes when its mount does."""
    for device, backing in backing_files().items():
        if Path(backing).is_relative_to(directory):
            _clear(device)


def _clear(device: Path) -> None:
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.ioctl(descriptor, _LOOP_CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.close(descriptor)
