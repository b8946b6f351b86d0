"""The agent's socket on a tmpfs of its own, out of the sandbox's reach once it is made.

The sandbox sees `in/`; we dial `priv/`. Before untrusted code runs, the socket is hard-linked across without
following links and proven to be a socket (`capture`); once the agent has answered it is removed from `in/` and the
file system is made read-only (`seal`): a socket can still be connected to there, but nothing can be put in its
place and nothing can be filled. Sealing any earlier fails gVisor's bind, which touches the path again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.errors import SandboxFailed
from k8e.substrate.local.host import inotify, mount
from k8e.substrate.local.host.process import Process, wait_death
from k8e.substrate.local.layout import SandboxPaths

__all__ = ["boot_markers", "capture", "captured", "give_secret", "make", "seal", "wait"]

_SIZE_BYTES = 64 * 1024
_INODES = 16
_SOCKET = "agent.sock"
_SECRET = "secret"  # noqa: S105  # the name of a file
_BOOT_ERROR = "boot-error"
_BOOT_ERROR_BYTES = 2048


def make(paths: SandboxPaths, owner: int) -> None:
    """Mount it: `in/` belongs to the sandbox's root, `priv/` to us alone."""
    mount.tmpfs(paths.control, size_bytes=_SIZE_BYTES, inodes=_INODES, mode=0o711)
    paths.inbox.mkdir(mode=0o700)
    os.chown(paths.inbox, owner, owner)
    paths.private.mkdir(mode=0o700)


def give_secret(paths: SandboxPaths, secret: str, owner: int) -> None:
    """Leave the secret for the agent, which reads it before anything else of the sandbox runs; `seal` removes it."""
    path = paths.inbox / _SECRET
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secret)
    os.chown(path, owner, owner)


def boot_markers(paths: SandboxPaths) -> tuple[Path, ...]:
    """The files of which the agent makes one when its boot is over: it listens, or knows that it cannot."""
    return (paths.inbox / _SOCKET, paths.inbox / _BOOT_ERROR)


async def wait(paths: SandboxPaths, init: Process) -> None:
    """Return once the agent has made its socket. Raises: SandboxFailed if it died or said why it cannot."""
    async with asyncio.TaskGroup() as tasks:
        death = tasks.create_task(wait_death(init), name="boot: death")
        birth = tasks.create_task(_appearance(paths), name="boot: socket")
        await asyncio.wait((death, birth), return_when=asyncio.FIRST_COMPLETED)
        is_born = birth.done()
        death.cancel()
        birth.cancel()
    if not is_born or not (paths.inbox / _SOCKET).exists():
        raise SandboxFailed("boot agent", _boot_error(paths) or "it ended before it listened")


async def _appearance(paths: SandboxPaths) -> None:
    with contextlib.suppress(FileNotFoundError):  # destroyed meanwhile; the caller looks for what should be there
        await inotify.until(paths.inbox, inotify.CREATE, lambda: any(path.exists() for path in boot_markers(paths)))


def _boot_error(paths: SandboxPaths) -> str:
    """What the agent wrote, read without following links: by now the file may be anybody's."""
    try:
        descriptor = os.open(paths.inbox / _BOOT_ERROR, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _BOOT_ERROR_BYTES).decode("utf-8", "replace").strip()
    finally:
        os.close(descriptor)


def capture(paths: SandboxPaths) -> None:
    """Give us a name for the socket that the sandbox cannot change. Raises: OSError, SandboxFailed."""
    ours = paths.private / _SOCKET
    os.link(paths.inbox / _SOCKET, ours, follow_symlinks=False)
    if not stat.S_ISSOCK(ours.lstat().st_mode):
        ours.unlink()
        raise SandboxFailed("capture agent socket", "not a socket")


def seal(paths: SandboxPaths) -> None:
    """Take away the sandbox's own name for it, and let nothing be written there again."""
    for name in (_SOCKET, _SECRET):
        (paths.inbox / name).unlink(missing_ok=True)
    _freeze(paths.control)


def _freeze(target: Path) -> None:
    try:
        mount.mount("k8e", target, "tmpfs", flags=("remount", "ro", "nosuid", "nodev", "noexec"))
    except OSError as error:
        # Somebody inside holds a file open for writing: the size and inode limits still stand.
        if error.errno != errno.EBUSY:
            raise


@contextmanager
def captured(paths: SandboxPaths) -> Iterator[str]:
    """A path to dial, short however deep the data directory is (a socket address holds 107 bytes)."""
    directory = os.open(paths.private, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{_SOCKET}"
    finally:
        os.close(directory)
