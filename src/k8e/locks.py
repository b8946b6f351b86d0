"""Locks that no other user of this machine can take or imitate; the kernel lets go of them when their holder dies.

Whoever may read a file may `flock` it, and so keep others from what it stands for. Hence a lock that excludes is a file
that nobody else can open. One that is shown is a record lock, which takes the right to write, and it is asked about
without being taken; readers can hold against it only an older file of that name.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from k8e import whole

__all__ = ["is_shown", "private", "show"]

_MODE = 0o644


def private(path: Path) -> IO[str]:
    """A file to lock that only its owner can open."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", encoding="utf-8")
    os.fchmod(file.fileno(), 0o600)  # whoever made it
    return file


@contextlib.contextmanager
def show(path: Path) -> Iterator[None]:
    """Let everybody see that this process lives."""
    import fcntl

    new = whole.unfinished(path)
    with private(new) as file:
        # The open file's and not the process's, which would lose it by looking at the file a second time.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _record(fcntl.F_WRLCK))
        os.fchmod(file.fileno(), _MODE)
        new.replace(path)
        yield


def is_shown(path: Path) -> bool:
    """Whether the process that showed it lives."""
    if sys.platform != "linux":
        return False  # no server runs there
    import fcntl
    import struct

    try:
        with path.open("rb") as file:
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _record(fcntl.F_RDLCK))
    except OSError:
        return False
    kind: int = struct.unpack_from("h", found)[0]
    return kind != fcntl.F_UNLCK


def _record(kind: int) -> bytes:
    """The kernel's `struct flock` for a whole file: type, whence, start, length, pid."""
    import struct

    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
