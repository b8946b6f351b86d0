"""Waiting for a file system change without polling."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["CREATE", "MODIFY", "until", "watching"]

MODIFY = 0x2
CREATE = 0x100
_MOVED_TO = 0x80
_BUFFER = 4096

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def watching(path: Path, mask: int) -> Iterator[int]:
    """A descriptor that becomes readable when `path` changes."""
    descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        if _libc.inotify_add_watch(descriptor, os.fsencode(path), ctypes.c_uint32(mask | _MOVED_TO)) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


async def until(path: Path, mask: int, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, looking again at every change of `path`."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    with watching(path, mask) as descriptor:

        def drain() -> None:
            os.read(descriptor, _BUFFER)
            changed.set()

        loop.add_reader(descriptor, drain)
        try:
            while not condition():
                await changed.wait()
                changed.clear()
        finally:
            loop.remove_reader(descriptor)
