"""Files: whole ones for clients that know only those, streams of any size and name for the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator

from k8e._proto import sandbox_pb2 as pb
from k8e.capture import Capture
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.doors.service.encoding import CONTENT_BYTES, FairWorker, LargeAnswer
from k8e.doors.service.execs import with_output
from k8e.doors.service.paging import page
from k8e.engine.engine import Engine
from k8e.engine.files import FileChange
from k8e.errors import Exhausted, InvalidSpec
from k8e.model import FileEntry

__all__ = ["FileRpcs"]

PERMISSIONS = 0o7777


class FileRpcs:
    def __init__(self, engine: Engine, worker: FairWorker) -> None:
        self._engine = engine
        self._worker = worker

    async def WriteFile(self, call: Call, request: pb.WriteFileRequest) -> pb.WriteFileResponse:
        if request.mode not in {"", "w", "a"}:
            raise InvalidSpec("must be w or a", field="mode")
        size = await self._engine.write_file(
            call.owner,
            fields.session_id(request.session_id),
            fields.path(request.path, request.path_bytes),
            once(request.content_bytes or request.content.encode()),
            append=request.mode == "a",
            perm=permissions(request),
            asked_by=call.caller.identity,
        )
        return pb.WriteFileResponse(ok=True, size=size)

    async def ReadFile(self, call: Call, request: pb.ReadFileRequest) -> pb.ReadFileResponse | LargeAnswer:
        session_id = fields.session_id(request.session_id)
        content = Capture(CONTENT_BYTES, call.reservation.grow)
        async for chunk in self._engine.read_file(
            call.owner, session_id, fields.path(request.path, request.path_bytes)
        ):
            content.add(chunk)
            check_room(content.total)
            if content.is_truncated:
                raise Exhausted("your calls hold too much memory: use ReadStream, or wait for those that run")
        answer = await with_output(self._worker, call, pb.ReadFileResponse(), content=content.value())
        if isinstance(answer, LargeAnswer):
            answer.can_be_cut = False
        return answer

    async def ListFiles(self, call: Call, request: pb.ListFilesRequest) -> pb.ListFilesResponse:
        return await self._listing(call, request, "/workspace", recursive=True)

    async def ReadStream(self, call: Call, request: pb.ReadStreamRequest) -> None:
        chunks = self._engine.read_file(
            call.owner,
            fields.session_id(request.session_id),
            fields.path(request.path, request.path_bytes),
            offset=fields.offset(request.offset),
            length=fields.offset(request.length, "length") if request.HasField("length") else None,
        )
        async for chunk in chunks:
            await call.write(pb.ReadStreamResponse(data=chunk))

    async def WriteStream(self, call: Call, inputs: AsyncIterator[pb.WriteStreamRequest]) -> pb.WriteStreamResponse:
        first = await anext(inputs, None)
        if first is None or first.WhichOneof("input") != "open":
            raise InvalidSpec("must be the first message", field="open")
        size = await self._engine.write_file(
            call.owner,
            fields.session_id(first.open.session_id),
            fields.path(first.open.path, first.open.path_bytes),
            data(inputs),
            append=first.open.append,
            perm=permissions(first.open),
            asked_by=call.caller.identity,
        )
        return pb.WriteStreamResponse(size=size)

    async def StatFile(self, call: Call, request: pb.StatFileRequest) -> pb.FileEntry:
        entry = await self._engine.stat_file(
            call.owner,
            fields.session_id(request.session_id),
            fields.path(request.path, request.path_bytes),
            follow=not request.no_follow,
        )
        return entry_message(entry)

    async def ListDirectory(self, call: Call, request: pb.ListDirectoryRequest) -> pb.ListFilesResponse:
        path = fields.path(request.path, request.path_bytes, default="/workspace")
        return await self._listing(call, request, path, recursive=request.recursive)

    async def _listing(
        self, call: Call, request: pb.ListFilesRequest | pb.ListDirectoryRequest, path: str, *, recursive: bool
    ) -> pb.ListFilesResponse:
        session_id, since_s = fields.session_id(request.session_id), fields.offset(request.since, "since")
        after = fields.clean(request.page_token, "page_token", limit=fields.PATH_BYTES)
        most = fields.offset(request.page_size, "page_size")
        found = await self._engine.list_files(
            call.owner, session_id, path, recursive=recursive, since_s=since_s, after=after, most=most
        )
        messages = await page(found.entries, entry_message)
        last = found.after if len(messages) == len(found.entries) else found.entries[len(messages) - 1].path
        return pb.ListFilesResponse(files=messages, next_page_token=fields.as_bytes(last))

    async def MakeDirectory(self, call: Call, request: pb.MakeDirectoryRequest) -> pb.MakeDirectoryResponse:
        path = fields.path(request.path, request.path_bytes)
        session_id = fields.session_id(request.session_id)
        await self._engine.make_directory(call.owner, session_id, path, asked_by=call.caller.identity)
        return pb.MakeDirectoryResponse(ok=True)

    async def MoveFile(self, call: Call, request: pb.MoveFileRequest) -> pb.MoveFileResponse:
        source = fields.path(request.source, request.source_bytes, "source")
        target = fields.path(request.target, request.target_bytes, "target")
        session_id = fields.session_id(request.session_id)
        await self._engine.move_file(call.owner, session_id, source, target, asked_by=call.caller.identity)
        return pb.MoveFileResponse(ok=True)

    async def RemoveFile(self, call: Call, request: pb.RemoveFileRequest) -> pb.RemoveFileResponse:
        await self._engine.remove_file(
            call.owner,
            fields.session_id(request.session_id),
            fields.path(request.path, request.path_bytes),
            recursive=request.recursive,
            asked_by=call.caller.identity,
        )
        return pb.RemoveFileResponse(ok=True)

    async def WatchFiles(self, call: Call, request: pb.WatchFilesRequest) -> None:
        changes = self._engine.watch(
            call.owner,
            fields.session_id(request.session_id),
            fields.path(request.path, request.path_bytes, default="/workspace"),
            recursive=request.recursive,
        )
        async for change in changes:
            await call.write(change_message(change))


async def once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def data(inputs: AsyncIterator[pb.WriteStreamRequest]) -> AsyncIterator[bytes]:
    async for message in inputs:
        if message.WhichOneof("input") != "data":
            raise InvalidSpec("may come only once, as the first message", field="open")
        yield message.data


def permissions(request: pb.WriteFileRequest | pb.WriteStreamOpen) -> int | None:
    if not request.HasField("perm"):
        return None
    if request.perm & ~PERMISSIONS:
        raise InvalidSpec("has bits that are not permissions", field="perm")
    return request.perm


def check_room(size: int) -> None:
    if size > CONTENT_BYTES:
        raise InvalidSpec(f"is larger than one message of {fields.MESSAGE_BYTES} bytes; use ReadStream", field="path")


def entry_message(entry: FileEntry) -> pb.FileEntry:
    path, path_bytes = fields.text_and_bytes(fields.as_bytes(entry.path))
    return pb.FileEntry(
        path=path,
        path_bytes=path_bytes,
        modified=int(entry.modified_s),
        modified_s=entry.modified_s,
        type=entry.kind,
        size=entry.size,
        mode=entry.mode,
        target=fields.as_bytes(entry.target),
    )


def change_message(change: FileChange) -> pb.FileChange:
    path, path_bytes = fields.text_and_bytes(fields.as_bytes(change.path))
    return pb.FileChange(kind=change.kind, path=path, path_bytes=path_bytes)
