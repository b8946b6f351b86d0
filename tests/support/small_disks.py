"""A data directory on a disk of its own, small enough to be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.substrate.local.host import loop
from tests.support.eventually import eventually

__all__ = ["free_bytes", "leave", "small_disk", "take_all"]


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Path]:
    """An ext4 file system as most hosts have it, mounted below `directory` for the length of a block."""
    image, place = directory / "host.ext4", directory / "d"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    place.chmod(0o711)
    try:
        yield place
    finally:
        # The kernel lets go of a removed sandbox's disk, which lies on this one, in its own time.
        assert eventually(lambda: subprocess.run(["umount", str(place)], check=False).returncode == 0)
        # A process that another test has just started in a mount namespace of its own may still have a copy of the mount.
        assert eventually(lambda: str(image) not in loop.backing_files().values())
        image.unlink()


def free_bytes(place: Path) -> int:
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize


def leave(place: Path, room_bytes: int) -> Path:
    """Take the disk's room but for this much; returns the file that holds it."""
    ballast = place / "ballast"
    with ballast.open("ab") as file:
        while (much := free_bytes(place) - room_bytes) > 0:
            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, much)
    return ballast


def take_all(place: Path) -> Path:
    """Take every block, as another program of the host may do."""
    ballast = leave(place, 2**20)
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast
