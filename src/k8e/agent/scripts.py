"""Code of several lines as a file: in the working directory, so that what lies there can be imported as ever.

The file has a hidden name of its own and is removed when its command has ended. Where the command's user may not
write, it lies in a private directory instead.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .execs import Launch

__all__ = ["is_writable", "keep", "keep_at", "path_in"]

_PRIVATE_PREFIX = "/tmp/.k8e-run-"


def path_in(directory: str, suffix: str) -> str:
    """A name that nobody uses."""
    return "%s/.k8e-%s%s" % (directory.rstrip("/"), os.urandom(8).hex(), suffix)


def keep(code: str, suffix: str, launch: Launch) -> str:
    """Write the code where it belongs; its path."""
    directory = os.path.join("/", launch.cwd)
    if is_writable(directory, launch):
        path = path_in(directory, suffix)
        try:
            keep_at(path, code, launch)
        except OSError:
            pass  # a full or read-only disk may still have room elsewhere
        else:
            return path
    return _keep_privately(code, suffix, launch)


def keep_at(path: str, code: str, launch: Launch) -> None:
    """Write the code byte for byte into a new file, which is removed when the command has ended."""
    # SAFETY: O_EXCL and a random name: nothing that the command's user put there is followed or overwritten.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    launch.cleanup = lambda: _unlink(path)
    try:
        _write(fd, code, path)
        if launch.user is not None:
            os.fchown(fd, launch.user[0], launch.user[1])
    except OSError:
        _unlink(path)
        raise
    finally:
        os.close(fd)


def _write(fd: int, code: str, path: str) -> None:
    data = code.encode("utf-8", "surrogateescape")
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def is_writable(directory: str, launch: Launch) -> bool:
    """Whether the command's user may make files there."""
    if launch.user is None:
        return os.access(directory, os.W_OK | os.X_OK)
    try:
        status = os.stat(directory)
    except OSError:
        return False
    uid, gid, groups = launch.user
    if uid == status.st_uid:
        return status.st_mode & 0o300 == 0o300
    if status.st_gid == gid or status.st_gid in groups:
        return status.st_mode & 0o030 == 0o030
    return status.st_mode & 0o003 == 0o003


def _keep_privately(code: str, suffix: str, launch: Launch) -> str:
    place = _PRIVATE_PREFIX + os.urandom(8).hex()
    path = "%s/main%s" % (place, suffix)
    os.mkdir(place, 0o700)
    try:
        keep_at(path, code, launch)
        if launch.user is not None:
            os.chown(place, launch.user[0], launch.user[1])
    finally:
        launch.cleanup = lambda: _remove(place)
    return path


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # the command removed it itself: its own affair


def _remove(place: str) -> None:
    from .files import remove_tree

    try:
        remove_tree(os.fsencode(place))
    except OSError:
        pass  # the command removed it itself, or filled the disk: its own affair
