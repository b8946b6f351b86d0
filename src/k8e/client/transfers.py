"""Files and trees between here and a session: any content, with their modes, never beyond the local target."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from k8e.client.errors import InvalidRequest, NotFound, ServerFailed
from k8e.client.execs import PIECE, ExecCalls
from k8e.client.files import FileCalls
from k8e.client.landing import Landing, link_stays_inside, parts_below
from k8e.client.values import FileInfo, Transferred

__all__ = ["Progress", "TransferCalls"]

Progress = Callable[[str, int, int], None]
"""Called with a file's path at its source, the bytes copied of all, and the bytes of all."""

WORKSPACE = "/workspace"
COMMAND_S = 60.0
DIRECTORY_MODE = 0o755
"""What a new directory has; only others need a word more."""


@dataclass(slots=True)
class Tally:
    """What is copied, and who wants to know."""

    total: int
    progress: Progress | None
    files: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, path: str, count: int) -> None:
        self.bytes += count
        if self.progress is not None:
            self.progress(path, self.bytes, self.total)

    def result(self) -> Transferred:
        return Transferred(files=self.files, bytes=self.bytes, skipped=tuple(self.skipped))


class TransferCalls(FileCalls, ExecCalls):
    async def upload(
        self, session_id: str, local: str | os.PathLike[str], remote: str, *, progress: Progress | None = None
    ) -> Transferred:
        """Copy a file, or everything below a directory, to `remote`.

        A file goes into `remote` where that is a directory or ends with a slash. Links are copied as links.
        """
        source = Path(local)
        if not await asyncio.to_thread(source.is_dir):
            return await self._upload_file(session_id, source, remote, progress)
        entries = await asyncio.to_thread(lambda: list(local_tree(source)))
        tally = Tally(sum(entry.size for entry in entries), progress)
        await self.make_directory(session_id, remote)
        for entry in entries:
            await self._send(session_id, entry, joined(remote, entry.relative), tally)
        await self._set_modes(session_id, remote, [entry for entry in entries if entry.is_directory])
        return tally.result()

    async def download(
        self, session_id: str, remote: str, local: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Transferred:
        """Copy a file, or everything below a directory, to `local`.

        A file goes into `local` where that is a directory. Nothing is ever written outside `local`, whatever the
        sandbox answers: a name that leads elsewhere is an error, a link that does is left out and said in `skipped`.
        """
        target = Path(local)
        found = await self.stat(session_id, remote or WORKSPACE)
        if found.type == "directory":
            entries = await self.list_directory(session_id, remote, recursive=True)
            return await self._fetch_tree(session_id, posixpath.normpath(found.path), entries, target, progress)
        if found.type != "file":
            raise InvalidRequest(f"remote: {remote} is neither a file nor a directory")
        if await asyncio.to_thread(target.is_dir):
            # The name that was asked for, not the one that the sandbox answered with.
            target = target / (PurePosixPath(remote).name or "file")
        tally = Tally(found.size, progress)
        await self._fetch(session_id, found, Landing(target.parent), (target.name,), tally)
        return tally.result()

    async def _upload_file(self, session_id: str, source: Path, remote: str, progress: Progress | None) -> Transferred:
        entry = await asyncio.to_thread(local_entry, source, source.name)
        if entry is None:
            raise InvalidRequest(f"local: {source} is neither a file nor a directory")
        tally = Tally(entry.size, progress)
        into = remote.endswith("/") or await self._is_directory(session_id, remote)
        await self._send(session_id, entry, joined(remote, source.name) if into else remote, tally)
        return tally.result()

    async def _is_directory(self, session_id: str, path: str) -> bool:
        try:
            return (await self.stat(session_id, path)).type == "directory"
        except NotFound:
            return False

    async def _send(self, session_id: str, entry: LocalEntry, remote: str, tally: Tally) -> None:
        if entry.is_directory:
            await self.make_directory(session_id, remote)
        elif entry.target is not None:
            await self._commanded(session_id, ["ln", "-sfn", "--", entry.target, absolute(remote)])
        else:
            content = counted(local_pieces(entry.path), str(entry.path), tally)
            await self.write_file(session_id, remote, content, perm=entry.mode)
            tally.files += 1

    async def _set_modes(self, session_id: str, remote: str, directories: list[LocalEntry]) -> None:
        """From the deepest up: a directory that nobody may enter is closed after what is in it."""
        for entry in reversed(directories):
            if entry.mode != DIRECTORY_MODE:
                path = absolute(joined(remote, entry.relative))
                await self._commanded(session_id, ["chmod", f"{entry.mode:o}", "--", path])

    async def _commanded(self, session_id: str, argv: list[str]) -> None:
        done = await self.exec(session_id, argv, COMMAND_S)
        if done.exit_code:
            raise ServerFailed(f"{argv[0]} in the sandbox failed: {done.stderr.strip() or done.detail}")

    async def _fetch_tree(
        self, session_id: str, root: str, entries: list[FileInfo], target: Path, progress: Progress | None
    ) -> Transferred:
        placed = [(entry, parts_below(root, entry.path)) for entry in entries]
        landing = Landing(target)
        tally = Tally(sum(entry.size for entry in entries if entry.type == "file"), progress)
        await asyncio.to_thread(landing.make_directory, ())
        for entry, parts in placed:
            if entry.type == "directory":
                await asyncio.to_thread(landing.make_directory, parts)
            elif entry.type == "file":
                await self._fetch(session_id, entry, landing, parts, tally)
            elif entry.type != "symlink" or not link_stays_inside(parts, entry.target):
                tally.skipped.append(entry.path)
        # SAFETY: links come after all files: nothing is written while one from the sandbox is there.
        for entry, parts in placed:
            if entry.type == "symlink" and link_stays_inside(parts, entry.target):
                await asyncio.to_thread(landing.link, parts, entry.target)
        for entry, parts in sorted(placed, key=lambda each: len(each[1]), reverse=True):
            if entry.type == "directory":
                await asyncio.to_thread(landing.set_mode, parts, entry.mode)
        return tally.result()

    async def _fetch(
        self, session_id: str, entry: FileInfo, landing: Landing, parts: tuple[str, ...], tally: Tally
    ) -> None:
        file, temporary = await asyncio.to_thread(landing.open, parts)
        try:
            with file:
                async for piece in self.read_chunks(session_id, entry.path):
                    await asyncio.to_thread(file.write, piece)
                    tally.add(entry.path, len(piece))
            await asyncio.to_thread(landing.put, temporary, parts, entry.mode)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        tally.files += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEntry:
    path: Path
    relative: str
    mode: int
    size: int = 0
    is_directory: bool = False
    target: str | None = None
    """Where a link points."""


def local_entry(path: Path, relative: str) -> LocalEntry | None:
    """What is there; None for devices, sockets and the like."""
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISLNK(found.st_mode):
        return LocalEntry(path=path, relative=relative, mode=mode, target=str(path.readlink()))
    if stat.S_ISDIR(found.st_mode):
        return LocalEntry(path=path, relative=relative, mode=mode, is_directory=True)
    if stat.S_ISREG(found.st_mode):
        return LocalEntry(path=path, relative=relative, mode=mode, size=found.st_size)
    return None


def local_tree(root: Path) -> Iterator[LocalEntry]:
    """Everything below a directory, parents first, no link followed."""
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted([*names, *files]):
            path = Path(directory) / name
            entry = local_entry(path, path.relative_to(root).as_posix())
            if entry is not None:
                yield entry


async def local_pieces(path: Path) -> AsyncGenerator[bytes, None]:
    file = await asyncio.to_thread(path.open, "rb")
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


async def counted(pieces: AsyncGenerator[bytes, None], path: str, tally: Tally) -> AsyncIterator[bytes]:
    # A progress that fails leaves the file behind us open: it is closed here and not whenever it is forgotten.
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            yield piece
            tally.add(path, len(piece))


def joined(remote: str, relative: str) -> str:
    return f"{remote.rstrip('/')}/{relative}" if remote else relative


def absolute(remote: str) -> str:
    """For commands: a relative path means one below the workspace, as in every call."""
    return remote if remote.startswith("/") else f"{WORKSPACE}/{remote}"
