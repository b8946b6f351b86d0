"""From a path in a request to a directory descriptor and a name, confined below a root where one is given.

With a root every component is opened on its own, without following: symbolic links are read and walked by us, and
neither a link, nor `..`, nor a race between two looks can leave the root, because nothing is ever resolved by path.
Without a root the kernel resolves the path, as for any program in the sandbox.
"""

from __future__ import annotations

import os
import stat

from . import fields
from .fields import Refusal
from .guards import guard_of, inode_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from .guards import Guard, Inode

__all__ = ["Place", "place_of"]

_HOME = "/workspace"
_MAX_LINKS = 40
_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Place:
    """A name in a directory; close it when done."""

    __slots__ = ("dir_fd", "guard", "inodes", "is_confined", "name", "path")

    def __init__(self, path: bytes, name: bytes, dir_fd: Optional[int]) -> None:
        self.guard: Optional[Guard] = None
        self.inodes: List[Inode] = []
        self.path = path
        self.name = name
        self.dir_fd = dir_fd
        self.is_confined = dir_fd is not None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """open(2), never through a link when confined."""
        extra = os.O_NOFOLLOW if self.is_confined else 0
        try:
            return os.open(self.name, flags | extra | os.O_CLOEXEC, mode, dir_fd=self.dir_fd)
        except OSError as error:
            error.filename = self.path
            raise

    def stat(self, *, follow: bool) -> os.stat_result:
        """stat(2) or lstat(2)."""
        try:
            return os.stat(self.name, dir_fd=self.dir_fd, follow_symlinks=follow and not self.is_confined)
        except OSError as error:
            error.filename = self.path
            raise

    def check(self, *, above: bool = False) -> None:
        """Whether it may be changed; with `above`, and with it what lies below. Raises: Refusal."""
        if self.guard is not None:
            self.guard.check(self.path, self.inodes + self._own_inode(), above=above)

    def _own_inode(self) -> List[Inode]:
        try:
            return [inode_of(self.stat(follow=False))]
        except OSError:
            return []

    def sibling(self, name: bytes) -> Place:
        """Another name in the same directory; it borrows this place's descriptor."""
        if self.is_confined:
            return Place(os.path.join(os.path.dirname(self.path), name), name, self.dir_fd)
        path = os.path.join(os.path.dirname(self.name), name)
        return Place(path, path, None)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *details: object) -> None:
        if self.dir_fd is not None:
            os.close(self.dir_fd)
            self.dir_fd = None


def place_of(args: Dict[str, Any], name: str = "path", *, follow: bool = True, parents: bool = False) -> Place:
    """The place that a request names.

    Raises:
        Refusal: the path leaves its root, or is no path.
        OSError: a directory on the way is missing or unreadable.
    """
    path = os.fsencode(fields.text(args, name))
    root = fields.optional_text(args, "root")
    guard = guard_of(args)
    if not path:
        raise Refusal("invalid", "%s is empty" % name)
    if guard is not None and root is None:
        # The kernel would resolve it unseen; from the top every step is ours.
        path, root = os.path.join(os.fsencode(_HOME), path), "/"
    if root is None:
        path = os.path.join(os.fsencode(_HOME), path)
        if parents:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        return Place(path, path, None)
    return _Walk(os.fsencode(root), follow, parents, guard).to(path)


class _Walk:
    """One confined resolution."""

    def __init__(self, root: bytes, follow: bool, parents: bool, guard: Optional[Guard] = None) -> None:
        self._guard = guard
        self._root = os.path.normpath(root)
        self._follow = follow
        self._parents = parents
        self._links = 0
        self._fds: List[int] = [os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._names: List[bytes] = []

    def to(self, path: bytes) -> Place:
        try:
            name = self._resolve(self._parts(path))
            shown = b"/".join([self._root.rstrip(b"/"), *self._names, name])
            place = Place(shown, name, os.dup(self._fds[-1]))
            place.guard, place.inodes = self._guard, self._inodes()
            return place
        finally:
            for fd in self._fds:
                os.close(fd)

    def _parts(self, path: bytes) -> List[bytes]:
        """Components, last first; an absolute path must lie below the root."""
        if path.startswith(b"/"):
            below = path + b"/"
            prefix = self._root.rstrip(b"/") + b"/"
            if not below.startswith(prefix):
                raise self._escape(path)
            while len(self._fds) > 1:
                os.close(self._fds.pop())
            self._names.clear()
            path = below[len(prefix) :]
        return [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]

    def _resolve(self, pending: List[bytes]) -> bytes:
        while pending:
            part = pending.pop()
            if part == b"..":
                self._up()
                continue
            if not pending and not self._follow:
                return part
            target = self._link(part)
            if target is not None:
                pending += self._parts(target)
            elif not pending:
                return part
            else:
                self._enter(part)
        return b"."

    def _up(self) -> None:
        if len(self._fds) == 1:
            raise self._escape(b"..")
        os.close(self._fds.pop())
        self._names.pop()

    def _link(self, part: bytes) -> Optional[bytes]:
        try:
            target = os.readlink(part, dir_fd=self._fds[-1])
        except OSError:
            return None
        self._links += 1
        if self._links > _MAX_LINKS:
            raise Refusal("invalid", "too many symbolic links")
        return target

    def _enter(self, part: bytes) -> None:
        try:
            fd = self._open(part)
        except FileNotFoundError:
            if not self._parents:
                raise
            if self._guard is not None:
                self._guard.check_parent(os.path.join(self._root, *self._names, part), self._inodes())
            os.mkdir(part, dir_fd=self._fds[-1])
            fd = self._open(part)
        self._fds.append(fd)
        self._names.append(part)

    def _inodes(self) -> List[Inode]:
        return [inode_of(os.fstat(fd)) for fd in self._fds] if self._guard is not None else []

    def _open(self, part: bytes) -> int:
        fd = os.open(part, _WALK, dir_fd=self._fds[-1])
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotADirectoryError(20, os.strerror(20), os.path.join(self._root, *self._names, part))
        return fd

    def _escape(self, path: bytes) -> Refusal:
        return Refusal("invalid", "%s leads out of %s" % (os.fsdecode(path), os.fsdecode(self._root)))
