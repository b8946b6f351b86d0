"""Waiting for a file system change without polling."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CREATE", "MODIFY", "drain", "until", "watching"]

MODIFY = 0x2
CREATE = 0x100
_MOVED_TO = 0x80
_BUFFER = 4096

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def watching(*paths: Path, mask: int = CREATE) -> Iterator[int]:
    """A descriptor that becomes readable when one of `paths` changes."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        for path in paths:
            if _libc.inotify_add_watch(descriptor, os.fsencode(path), ctypes.c_uint32(mask | _MOVED_TO)) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def drain(descriptor: int) -> None:
    """Forget what has been told so far."""
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, _BUFFER)


async def until(path: Path, mask: int, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, looking again at every change of `path`."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    with watching(path, mask=mask) as descriptor:

        def note() -> None:
            drain(descriptor)
            changed.set()

        loop.add_reader(descriptor, note)
        try:
            while not condition():
                await changed.wait()
                changed.clear()
        finally:
            loop.remove_reader(descriptor)
