"""Where files from a sandbox may land: below one local directory, whatever the sandbox calls them.

The names come from code that nobody trusts. They are taken apart here, and nothing is ever written through a link:
parents are real directories, files are put in place whole, and links come last and point nowhere but inside.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PureWindowsPath
from typing import IO

from k8e.client.errors import Conflict, InvalidRequest

__all__ = ["Landing", "link_stays_inside", "parts_below"]


def parts_below(root: str, path: str) -> tuple[str, ...]:
    """A remote path below `root`, part by part. Raises: InvalidRequest for one that is elsewhere or means to go there."""
    prefix = root.rstrip("/") + "/"
    if not path.startswith(prefix):
        raise InvalidRequest(f"path: the sandbox answered with {path!r}, which is not below {root!r}; not copied")
    parts = tuple(path[len(prefix) :].split("/"))
    if not all(is_plain(part) for part in parts):
        raise InvalidRequest(f"path: the sandbox answered with {path!r}, which may lead elsewhere; not copied")
    return parts


def is_plain(part: str) -> bool:
    """Whether a name is only a name, here and on other platforms."""
    if part in {"", ".", ".."} or "\0" in part:
        return False
    return os.name != "nt" or (PureWindowsPath(part).parts == (part,) and ":" not in part)


def link_stays_inside(parts: Sequence[str], target: str) -> bool:
    """Whether a link at `parts` leads to a place below the same root.

    `..` may only stand in front: after a name it would climb from wherever that name, which may be a link, leads to.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    words = [word for word in target.split("/") if word not in {"", "."}]
    climbs = 0
    while climbs < len(words) and words[climbs] == "..":
        climbs += 1
    return climbs < len(parts) and all(is_plain(word) for word in words[climbs:])


class Landing:
    """One local directory, filled without ever following a link."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def make_directory(self, parts: Sequence[str]) -> Path:
        """A real directory below the root. Raises: Conflict where something else is in its place."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root
        for part in parts:
            path = path / part
            if not is_link(path):
                path.mkdir(exist_ok=True)
            if is_link(path) or not path.is_dir():
                raise Conflict(f"{path} is not a directory (perhaps a link): move it away and download again")
        return path

    def open(self, parts: Sequence[str]) -> tuple[IO[bytes], Path]:
        """A new file beside its place, for `put`."""
        directory = self.make_directory(parts[:-1])
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".k8e-")
        return os.fdopen(descriptor, "wb"), Path(name)

    def put(self, temporary: Path, parts: Sequence[str], mode: int) -> None:
        """Move a whole file into place, over a file or link that is there. Raises: Conflict over a directory."""
        # SAFETY: without set-uid, set-gid and sticky bits: whoever downloads may be root.
        temporary.chmod(mode & 0o777 or 0o600)
        try:
            temporary.replace(self._place(parts))
        except (IsADirectoryError, PermissionError) as error:
            raise Conflict(f"{self._place(parts)} is in the way: move it away and download again") from error

    def file(self, parts: Sequence[str], mode: int, pieces: Iterable[bytes]) -> None:
        """A file that appears whole or not at all."""
        file, temporary = self.open(parts)
        try:
            with file:
                file.writelines(pieces)
            self.put(temporary, parts, mode)
        finally:
            temporary.unlink(missing_ok=True)

    def link(self, parts: Sequence[str], target: str) -> None:
        """A link, in place of a file or link that is there."""
        place = self._place(parts)
        self.make_directory(parts[:-1])
        if is_link(place) or place.is_file():
            place.unlink()
        try:
            place.symlink_to(target)
        except FileExistsError as error:
            raise Conflict(f"{place} is in the way: move it away and download again") from error

    def set_mode(self, parts: Sequence[str], mode: int) -> None:
        self.make_directory(parts).chmod(mode & 0o777 or 0o700)

    def _place(self, parts: Sequence[str]) -> Path:
        return self._root.joinpath(*parts)


def is_link(path: Path) -> bool:
    try:
        return stat.S_ISLNK(path.lstat().st_mode)
    except FileNotFoundError:
        return False
