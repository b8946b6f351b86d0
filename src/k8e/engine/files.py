"""Files of a session, streamed both ways; nothing is held here but the chunk on its way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from k8e.engine import answers
from k8e.engine.boxes import Box
from k8e.engine.process_stream import remote_failure
from k8e.errors import HostUnsupported, InvalidSpec, SandboxFailed
from k8e.model import PAGE_BYTES, FileEntry, FileKind
from k8e.wire.aio import Data, Event, LinkLost, RemoteError, Stream

__all__ = ["UNGUARDED", "FileChange", "FilePage", "Files", "Guard"]

_IN: Final = 0
_OUT: Final = 1
# How long the sandbox may take over one chunk of a file.
_STALL_TIMEOUT_S: Final = 60.0
_PAGE_ENTRIES: Final = 10_000
_BATCH_ENTRIES: Final = 1000
"""Of one message from the sandbox; its agent sends half as many."""
_ENTRY_BYTES: Final = 64
"""What an entry costs beside its names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class FilePage:
    """Entries in the order of their names, parents first."""

    entries: list[FileEntry]
    after: str
    """Where the next page goes on: the last of these, or nothing with the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Paths that the sandbox's agent changes only where it finds them approved, when it is about to."""

    gates: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()

    def fields(self) -> dict[str, list[str]]:
        return {"gates": list(self.gates), "approved": list(self.approved)} if self.gates else {}


UNGUARDED: Final = Guard()


class Files:
    """The file operations of one sandbox. Every path may hold any name that Linux allows."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Chunks of the file, never more than `length` bytes together. Raises: NotFound, InvalidSpec, SandboxFailed."""
        size = 0
        async with _opened(self._box, "file.read", {"path": path, "offset": offset, "length": length}) as stream:
            while (item := await _receive(stream, path)) is not None:
                if isinstance(item, Data):
                    size += len(item.payload)
                    if length is not None and size > length:
                        raise SandboxFailed(
                            "the sandbox's agent answered nonsense", "more of a file than was asked for"
                        )
                    yield item.payload
                    stream.ack(_OUT, item.offset + len(item.payload))

    async def gated(self, op: str, gates: tuple[str, ...], **paths: str) -> tuple[str, ...]:
        """Where a change would really be, as far as that is gated: write, append, mkdir, remove or move."""
        args = {"op": op, "gates": list(gates), **paths}
        try:
            answer = await self._call("file.gated", args, next(iter(paths.values())))
        except InvalidSpec as error:
            # An agent that does not know the question would not know the guard either.
            raise HostUnsupported(f"this sandbox is older than its gates ({error}): create another session") from error
        return tuple(answers.texts(answer, "paths", most=len(paths)))

    async def write(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        append: bool = False,
        perm: int | None = None,
        guard: Guard = UNGUARDED,
    ) -> int:
        """Replace the file in one step, or append; a broken transfer leaves the old content. Returns the new size."""
        args = {"path": path, "mode": "a" if append else "w", "perm": perm, "parents": True, **guard.fields()}
        async with _opened(self._box, "file.write", args) as stream:
            try:
                async for chunk in chunks:
                    await _send(stream, chunk, path)
                await stream.finish(_IN)
            except RemoteError:
                # The reason is in the stream itself: a full disk, a missing directory.
                pass
            while (item := await _receive(stream, path)) is not None:
                if isinstance(item, Event) and item.name == "written":
                    return answers.integer(item.fields, "size")
        raise SandboxFailed(f"write {path}", "the sandbox did not confirm it")

    async def stat(self, path: str, *, follow: bool = True) -> FileEntry:
        return _entry(await self._call("file.stat", {"path": path, "follow": follow}, path))

    async def list(
        self, path: str, *, recursive: bool, since_s: float = 0.0, after: str = "", most: int = 0
    ) -> FilePage:
        """The entries below a directory, or those that come after one of them: at most so many, as far as one page goes.

        The sandbox is asked for no more than that: the rest of its listing is cancelled.
        """
        entries: list[FileEntry] = []
        size, last = 0, _place_in_order(after)
        most = min(most or _PAGE_ENTRIES, _PAGE_ENTRIES)
        args = {"path": path, "recursive": recursive, "since": since_s, "after": after}
        async with _opened(self._box, "file.list", args) as stream:
            while (item := await _receive(stream, path)) is not None:
                for entry in map(_entry, _listed(item)):
                    last, before = _place_in_order(entry.path), last
                    if last <= before:
                        raise SandboxFailed("the sandbox's agent answered nonsense", "a listing out of order")
                    size += len(entry.path) + len(entry.target) + _ENTRY_BYTES
                    if entries and (len(entries) == most or size > PAGE_BYTES):
                        return FilePage(entries, entries[-1].path)
                    entries.append(entry)
                # A batch takes a millisecond or two, and the next one may be here already.
                await asyncio.sleep(0)
        return FilePage(entries, "")

    async def make_directory(self, path: str, *, guard: Guard = UNGUARDED) -> None:
        await self._call("file.mkdir", {"path": path, "parents": True, **guard.fields()}, path)

    async def move(self, source: str, target: str, *, guard: Guard = UNGUARDED) -> None:
        await self._call("file.move", {"source": source, "target": target, **guard.fields()}, source)

    async def remove(self, path: str, *, recursive: bool = False, guard: Guard = UNGUARDED) -> None:
        await self._call("file.remove", {"path": path, "recursive": recursive, **guard.fields()}, path)

    async def watch(self, path: str, *, recursive: bool) -> AsyncIterator[FileChange]:
        """Changes as they happen, until the caller stops asking."""
        async with _opened(self._box, "file.watch", {"path": path, "recursive": recursive}) as stream:
            while True:
                try:
                    item = await stream.receive()
                except RemoteError as error:
                    raise remote_failure(error, kind="path", name=path) from error
                if item is None:
                    return
                if isinstance(item, Event) and item.name == "change":
                    kind = answers.word(item.fields, "kind")
                    yield FileChange(kind=kind, path=answers.text(item.fields, "path"))

    async def _call(self, op: str, args: Mapping[str, Any], path: str) -> dict[str, Any]:
        try:
            return await (await self._box.link()).call(op, args, timeout_s=_STALL_TIMEOUT_S)
        except RemoteError as error:
            raise remote_failure(error, kind="file", name=path) from error
        except (LinkLost, TimeoutError) as error:
            raise await self._box.unreachable(error) from error


@contextlib.asynccontextmanager
async def _opened(box: Box, op: str, args: Mapping[str, Any]) -> AsyncIterator[Stream]:
    try:
        stream = await (await box.link()).open(op, args)
        try:
            yield stream
        finally:
            with contextlib.suppress(LinkLost):
                await stream.cancel()
    except LinkLost as error:
        raise await box.unreachable(error) from error


async def _send(stream: Stream, chunk: bytes, path: str) -> None:
    try:
        async with asyncio.timeout(_STALL_TIMEOUT_S):
            await stream.send(_IN, chunk)
    except TimeoutError as error:
        raise SandboxFailed(f"transfer {path}", "the sandbox stalled") from error


async def _receive(stream: Stream, path: str) -> Data | Event | None:
    try:
        async with asyncio.timeout(_STALL_TIMEOUT_S):
            return await stream.receive()
    except RemoteError as error:
        raise remote_failure(error, kind="file", name=path) from error
    except TimeoutError as error:
        raise SandboxFailed(f"transfer {path}", "the sandbox stalled") from error


def _listed(item: Data | Event) -> Sequence[Mapping[str, Any]]:
    """The entries of one message. Raises: SandboxFailed when they are none."""
    if not isinstance(item, Event) or item.name != "entries":
        return ()
    return answers.rows(item.fields, "entries", most=_BATCH_ENTRIES)


def _place_in_order(path: str) -> tuple[bytes, ...]:
    """What paths of a listing are compared by: name by name, so that a directory is followed by what is in it."""
    return tuple(path.encode("utf-8", "surrogateescape").split(b"/")) if path else ()


_KINDS: Final = {kind.value: kind for kind in FileKind}


def _entry(fields: Mapping[str, Any]) -> FileEntry:
    return FileEntry(
        path=answers.text(fields, "path"),
        kind=_KINDS.get(answers.word(fields, "kind"), FileKind.OTHER),
        size=answers.integer(fields, "size"),
        modified_s=answers.seconds(fields, "modified"),
        mode=answers.integer(fields, "mode", most=answers.INT32),
        target=answers.text(fields, "target") if fields.get("target") else "",
    )
