"""Where a session's files land: below one directory of ours, and never through a link that is or gets in there.

Every directory on the way is opened by its name in the one above, and a link in its place is an error: neither an
earlier copy of the same tree nor a program that runs meanwhile can lead a write elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from k8e.cli.table import printable
from k8e.client.errors import InvalidRequest, Unsupported

__all__ = ["Landing", "parts_below", "stays_below"]

PERMISSIONS = 0o777

Parts = tuple[str, ...]


def parts_below(root: str, path: str) -> Parts:
    """The names from a session's directory down to something in it. Raises: InvalidRequest when it is not in there."""
    prefix = root.rstrip("/") + "/"
    parts = tuple(path.removeprefix(prefix).split("/")) if path.startswith(prefix) else ()
    if not parts or any(part in {"", ".", ".."} or "\0" in part or os.sep in part for part in parts):
        raise InvalidRequest(
            f"the session names {printable(path)!r}, which is not below {printable(root)!r}; nothing was written"
        )
    return parts


def stays_below(parts: Parts, target: str) -> bool:
    """Whether a link at `parts` leads to something below the same root, by its text alone."""
    if not target or Path(target).is_absolute():
        return False
    depth = len(parts) - 1
    for part in target.split("/"):
        depth += {"..": -1, "": 0, ".": 0}.get(part, 1)
        if depth < 0:
            return False
    return True


class Landing:
    def __init__(self, root: Path) -> None:
        if os.open not in os.supports_dir_fd:
            raise Unsupported("copying out of a session needs a POSIX system; use `read --raw` instead")
        root.mkdir(parents=True, exist_ok=True)
        # The root itself is the user's choice, wherever it leads.
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._links: list[tuple[Parts, str]] = []
        self._modes: list[tuple[Parts, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            os.close(self._root)

    def directory(self, parts: Parts, mode: int) -> None:
        with self._opened(parts):
            self._modes.append((parts, mode & PERMISSIONS))

    def file(self, parts: Parts, mode: int, pieces: Iterable[bytes]) -> None:
        """A file that appears whole, in place of what was there."""
        with self._opened(parts[:-1]) as parent:
            temporary = f".k8e-{os.getpid()}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as file:
                    for piece in pieces:
                        file.write(piece)
                    os.fchmod(file.fileno(), mode & PERMISSIONS)
                os.rename(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def link(self, parts: Parts, target: str) -> None:
        """A link, made when everything else is there."""
        self._links.append((parts, target))

    def _finish(self) -> None:
        for parts, target in self._links:
            with self._opened(parts[:-1]) as parent:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(parts[-1], dir_fd=parent)
                os.symlink(target, parts[-1], dir_fd=parent)
        # The deepest first: a directory may lose its own permission to be entered.
        for parts, mode in reversed(self._modes):
            with self._opened(parts) as directory:
                os.fchmod(directory, mode)

    @contextlib.contextmanager
    def _opened(self, parts: Parts) -> Iterator[int]:
        """A directory below the root, made where it is missing."""
        current = os.dup(self._root)
        try:
            for part in parts:
                below = _entered(part, current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)


def _entered(name: str, parent: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            raise InvalidRequest(
                f"{printable(name)} is a link or a file here; nothing is written through it"
            ) from error
        raise
