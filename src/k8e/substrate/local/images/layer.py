"""Applying one image layer to a directory, with whiteouts, and without ever leaving that directory.

A layer is written by a stranger. Paths are resolved as the image's own root would resolve them: `..` stops at the root,
absolute links start there. Device nodes are left out (every view of the image is `nodev`).
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from k8e.errors import InvalidSpec

__all__ = ["ENVIRONMENT_BYTES", "Room", "apply", "resolve"]

ENVIRONMENT_BYTES = 32 * 1024
"""Of what an image may say to every command."""

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MAX_LINKS = 40
_MAX_ID = 65_535
_MAX_DEPTH = 256
"""Of directories in one another: what removes a tree may go down by a call for each."""
_LOOK_EVERY_BYTES = 16 * 1024 * 1024
_MAX_TIME = 2**33
_ENTRY_BYTES = 8 * 1024
"""What an entry takes of the host's disk besides its content, rounded up: inodes run out, too."""


Look = Callable[[int], None]
"""Looks whether the disk has room for so many bytes more. Raises: OSError, where it has none."""


class Room:
    """How much of an image may still be unpacked."""

    def __init__(self, size: int = 1 << 62, look: Look = lambda _size: None) -> None:
        self._size = size
        self._look = look
        self._unlooked = 0
        self.taken = 0

    def take(self, size: int) -> None:
        """For one entry with so many bytes. Raises: InvalidSpec, when the room is used up; OSError, when the disk is."""
        if size < 0:
            raise InvalidSpec(f"an entry has {size} bytes", field="image")
        self.taken += size + _ENTRY_BYTES
        if self.taken > self._size:
            raise InvalidSpec(
                f"unpacked it is larger than the {self._size} bytes that one image may have (--max-image)",
                field="image",
            )
        self._unlooked += size + _ENTRY_BYTES
        if self._unlooked >= _LOOK_EVERY_BYTES:
            self._unlooked = 0
            self._look(size)


def apply(archive: tarfile.TarFile, root: Path, room: Room) -> None:
    """Unpack every member of `archive` over what `root` holds already."""
    written: set[Path] = set()
    for member in archive:
        # `tarfile` remembers every member, and nobody asks it for one again.
        archive.members = []  # type: ignore[attr-defined]  # it says nothing of its own list
        room.take(member.size if member.isreg() else min(member.size, 0))
        place = _place(root, member.name, room)
        if place is None:
            continue
        if place.name == _OPAQUE:
            _clear(place.parent, keep=written)
        elif place.name.startswith(_WHITEOUT):
            _delete(place.with_name(_hidden(place.name)))
        else:
            _write(archive, member, place, root)
            written.add(place)
            written.update(place.parents)


def resolve(root: Path, name: str) -> Path:
    """Where `name` leads inside `root`, following links as a process chrooted there would."""
    pending = list(reversed(PurePosixPath(name).parts))
    here = root
    links = 0
    while pending:
        part = pending.pop()
        if part.startswith("/"):
            here = root
        elif part == "..":
            here = here.parent if here != root else root
        elif (here / part).is_symlink():
            links += 1
            if links > _MAX_LINKS:
                raise InvalidSpec(f"too many links at {name!r}", field="image")
            pending.extend(reversed((here / part).readlink().parts))
        else:
            here /= part
    return here


def _hidden(whiteout: str) -> str:
    """The name that a whiteout hides. Raises: InvalidSpec, for one that would lead out of its directory."""
    name = whiteout.removeprefix(_WHITEOUT)
    if name in ("", ".", ".."):
        raise InvalidSpec(f"{whiteout!r} hides nothing", field="image")
    return name


def _place(root: Path, name: str, room: Room) -> Path | None:
    """The member's own path: its parent resolved, its last part not."""
    pure = PurePosixPath(name)
    last = pure.name
    if last in ("", ".."):
        return None
    parent = resolve(root, str(pure.parent))
    if len(parent.relative_to(root).parts) > _MAX_DEPTH:
        raise InvalidSpec(f"it has more than {_MAX_DEPTH} directories in one another", field="image")
    _make_parent(parent, room)
    return parent / last


def _make_parent(path: Path, room: Room) -> None:
    """Directories that a layer only implies take room like those that it names."""
    if not path.is_dir():
        _make_parent(path.parent, room)
        room.take(0)
        _delete(path)
        path.mkdir()


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> None:
    if member.isdir():
        if place.is_symlink() or not place.is_dir():
            _delete(place)
            place.mkdir()
    elif member.issym():
        _delete(place)
        place.symlink_to(member.linkname)
    elif member.islnk():
        _link(place, resolve(root, "/" + member.linkname))
        return
    elif member.isreg():
        _delete(place)
        _extract(archive, member, place)
    elif member.isfifo():
        _delete(place)
        os.mkfifo(place)
    else:
        return
    _own(member, place)


def _link(place: Path, source: Path) -> None:
    if source.is_dir() or not source.exists():
        raise InvalidSpec(f"hard link to {source.name!r}, which is no file of the image", field="image")
    _delete(place)
    os.link(source, place, follow_symlinks=False)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    content = archive.extractfile(member)
    if content is None:
        raise InvalidSpec(f"{member.name!r} has no content", field="image")
    # SAFETY: O_EXCL after the delete: whatever stood there, a link included, is not written through.
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with content, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)


def _own(member: tarfile.TarInfo, place: Path) -> None:
    """Ids beyond the sandbox's block cannot exist inside; root stands in for them."""
    uid, gid = (number if 0 <= number <= _MAX_ID else 0 for number in (member.uid, member.gid))
    os.chown(place, uid, gid, follow_symlinks=False)
    if not member.issym():
        place.chmod(member.mode & 0o7777)
        time = member.mtime if 0 <= member.mtime < _MAX_TIME else 0
        os.utime(place, (time, time))


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _clear(directory: Path, *, keep: set[Path]) -> None:
    """Hide what lower layers put there; what this layer has written already stays."""
    for entry in list(directory.iterdir()):
        if entry not in keep:
            _delete(entry)
