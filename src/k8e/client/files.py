"""Calls about files: any name, any content, any size."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import ServerFailed
from k8e.client.execs import PIECE, raw
from k8e.client.light.calls import LISTED
from k8e.client.requests import Watched
from k8e.client.transport import GATED_S, QUICK_S, Transport
from k8e.client.values import FileChange, FileInfo

__all__ = ["FileCalls"]

UNARY_BYTES = 1024 * 1024
"""Up to this size one message is faster than a stream."""

Content = str | bytes | AsyncIterable[bytes]


class FileCalls(Transport):
    async def write_file(
        self, session_id: str, path: str, content: Content, mode: str = "w", *, perm: int | None = None
    ) -> int:
        """Write (`w`, atomically) or append (`a`) and return the file's size. Text is written as UTF-8."""
        data = raw(content) if isinstance(content, str | bytes) else content
        if isinstance(data, bytes) and len(data) <= UNARY_BYTES:
            request = pb.WriteFileRequest(
                session_id=session_id, path_bytes=raw(path), content_bytes=data, mode=mode, perm=perm
            )
            return (await self._call(self._stub.WriteFile, request, timeout_s=GATED_S)).size
        opened = pb.WriteStreamOpen(session_id=session_id, path_bytes=raw(path), append=mode == "a", perm=perm)
        return await self._written(opened, data)

    async def read_file(self, session_id: str, path: str) -> str:
        """A file as text; bytes that are not UTF-8 survive a later `write_file` unchanged (`surrogateescape`)."""
        return (await self.read_bytes(session_id, path)).decode("utf-8", "surrogateescape")

    async def read_bytes(self, session_id: str, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """A file, or a part of it, exactly as it is."""
        content = bytearray()
        async for chunk in self.read_chunks(session_id, path, offset=offset, length=length):
            content += chunk
        return bytes(content)

    async def read_chunks(
        self, session_id: str, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        """A file of any size, piece by piece."""
        request = pb.ReadStreamRequest(session_id=session_id, path_bytes=raw(path), offset=offset, length=length)
        async for message in self._streamed(self._stub.ReadStream, request):
            yield message.data

    async def list_files(self, session_id: str, since: int = 0, *, limit: int = 0) -> list[FileInfo]:
        """Everything under /workspace that changed at or after `since` (unix seconds), or the first `limit` of it."""
        request = pb.ListFilesRequest(session_id=session_id, since=since)
        return await self._listed(self._pages(self._stub.ListFiles, request), limit)

    async def list_directory(
        self, session_id: str, path: str = "", *, recursive: bool = False, since: int = 0
    ) -> list[FileInfo]:
        """The entries of one directory, or of the tree below it."""
        request = pb.ListDirectoryRequest(session_id=session_id, path_bytes=raw(path), recursive=recursive, since=since)
        return await self._listed(self._pages(self._stub.ListDirectory, request))

    async def stat(self, session_id: str, path: str, *, follow: bool = True) -> FileInfo:
        """What a path is."""
        request = pb.StatFileRequest(session_id=session_id, path_bytes=raw(path), no_follow=not follow)
        return file_info(await self._call(self._stub.StatFile, request, timeout_s=QUICK_S))

    async def make_directory(self, session_id: str, path: str) -> None:
        """Make a directory and its parents; harmless when it exists."""
        request = pb.MakeDirectoryRequest(session_id=session_id, path_bytes=raw(path))
        await self._call(self._stub.MakeDirectory, request, timeout_s=GATED_S)

    async def move(self, session_id: str, source: str, target: str) -> None:
        """Rename a file or directory."""
        request = pb.MoveFileRequest(session_id=session_id, source_bytes=raw(source), target_bytes=raw(target))
        await self._call(self._stub.MoveFile, request, timeout_s=GATED_S)

    async def remove(self, session_id: str, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a directory with everything in it."""
        request = pb.RemoveFileRequest(session_id=session_id, path_bytes=raw(path), recursive=recursive)
        await self._call(self._stub.RemoveFile, request, timeout_s=GATED_S)

    async def watch(self, session_id: str, path: str = "", *, recursive: bool = False) -> AsyncIterator[FileChange]:
        """Changes under a directory, as they happen, until the loop is left."""
        request = pb.WatchFilesRequest(session_id=session_id, path_bytes=raw(path), recursive=recursive)
        async for message in self._streamed(self._stub.WatchFiles, request):
            yield FileChange(message.kind, exact(message.path, message.path_bytes))

    async def _listed(self, pages: AsyncIterator[pb.ListFilesResponse], limit: int = 0) -> list[FileInfo]:
        found: list[FileInfo] = []
        async for answer in pages:
            found += [file_info(each) for each in answer.files]
            if limit and len(found) >= limit:
                return found[:limit]
            if len(found) > LISTED:
                raise ServerFailed(f"there are more than {LISTED} files: list a directory of them")
        return found

    async def _written(self, opened: pb.WriteStreamOpen, data: bytes | AsyncIterable[bytes]) -> int:
        given = Watched(pieces(opened, data))
        try:
            with given.telling():
                return (await self._stub.WriteStream(aiter(given))).size
        except aio.AioRpcError as error:
            raise self._rebuilt(error) from error


async def pieces(
    opened: pb.WriteStreamOpen, data: bytes | AsyncIterable[bytes]
) -> AsyncIterator[pb.WriteStreamRequest]:
    yield pb.WriteStreamRequest(open=opened)
    if isinstance(data, bytes):
        for start in range(0, len(data), PIECE):
            yield pb.WriteStreamRequest(data=data[start : start + PIECE])
    else:
        async for piece in data:
            yield pb.WriteStreamRequest(data=piece)


def exact(text: str, data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape") if data else text


def file_info(message: pb.FileEntry) -> FileInfo:
    return FileInfo(
        path=exact(message.path, message.path_bytes),
        type=message.type,
        size=message.size,
        modified=message.modified_s or float(message.modified),
        mode=message.mode,
        target=message.target.decode("utf-8", "surrogateescape"),
    )
