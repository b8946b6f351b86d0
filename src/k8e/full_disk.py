"""Telling a full disk from other errors, so that whoever hears of it knows what to do.

The kernel says ENOSPC also where no disk is full (watches of inotify, namespaces), so the disk itself is asked.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from k8e.errors import DiskFull

__all__ = ["explained", "is_full", "make_room"]

_BALLAST = 8 * 2**20
_LITTLE = 4 * 2**20
"""What the last block of a large write did not get may be free again by the time that one looks."""


def explained(error: BaseException, directory: Path) -> DiskFull | None:
    """What to say where this error, or one that it came from, is that the disk of `directory` has no room."""
    for each in _causes(error):
        if isinstance(each, DiskFull):
            return each
        if isinstance(each, OSError) and (
            each.errno == errno.EDQUOT or (each.errno == errno.ENOSPC and is_full(directory))
        ):
            return DiskFull(str(directory))
    return None


def is_full(directory: Path) -> bool:
    """Whether there is no room for another file, or hardly any for what it holds."""
    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return bool(room.f_blocks) and (room.f_bavail * room.f_frsize < _LITTLE or (room.f_files > 0 and not room.f_favail))


def make_room(ballast: Path) -> bool:
    """Keep a file for the day when its disk is full, and on that day give it up; whether this is the day.

    A server must start then, too: how else would anybody remove the sandboxes that fill the disk.
    """
    if is_full(ballast.parent):
        ballast.unlink(missing_ok=True)
        return True
    with contextlib.suppress(OSError), ballast.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, _BALLAST)
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised from; of several at once, all."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.append(each)
        yield each
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        waiting += [cause for cause in (each.__cause__,) if cause is not None]
