"""A unix socket in its place: nobody finds it half made, and nobody else's is taken away."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.errors import Conflict

__all__ = ["ANYBODY", "BACKLOG", "placed"]

ANYBODY = 0o666
"""Who connects is known by the kernel's word, so every user of this machine may."""

BACKLOG = 1024
"""Who wait to be accepted; a caller that does not block is turned away by the kernel when there are more."""


@contextmanager
def placed(path: Path, *, mode: int = ANYBODY) -> Iterator[socket.socket]:
    """A listening socket at `path`, where a dead server's may still lie; gone after the block.

    Raises: Conflict when somebody listens there or it is no socket; OSError.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        # By descriptor: a socket's address holds 107 bytes, and data directories can lie deep.
        place = Path(f"/proc/self/fd/{directory}/{path.name}")
        refuse_living(place, path)
        with listening(place.with_name(f".{path.name}.{os.getpid()}"), mode) as (sock, temporary):
            temporary.rename(place)
            ours = place.lstat().st_ino
            try:
                yield sock
            finally:
                with contextlib.suppress(FileNotFoundError):
                    if place.lstat().st_ino == ours:
                        place.unlink()
    finally:
        os.close(directory)


@contextmanager
def listening(temporary: Path, mode: int) -> Iterator[tuple[socket.socket, Path]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        temporary.unlink(missing_ok=True)
        sock.bind(os.fspath(temporary))
        try:
            temporary.chmod(mode)
            sock.setblocking(False)
            sock.listen(BACKLOG)
            yield sock, temporary
        finally:
            temporary.unlink(missing_ok=True)


def refuse_living(place: Path, shown: Path) -> None:
    """Raises: Conflict."""
    try:
        kind = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise Conflict(f"{shown} is in the way and no socket; move it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        with contextlib.suppress(ConnectionRefusedError):
            with contextlib.suppress(BlockingIOError):  # its queue is full: alive, and busy
                sock.connect(os.fspath(place))
            raise Conflict(f"another server listens on {shown}; stop it first")
