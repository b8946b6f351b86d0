"""Tools about files: write, read, list. What is read comes as what it is; a picture can be looked at."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace

import mcp_types as types

from k8e.client.errors import InvalidRequest
from k8e.mcp import contents
from k8e.mcp.bounds import Ends, beginning, fitting, needed_bytes, shown
from k8e.mcp.calls import ToolCall
from k8e.mcp.resources import links_to, uri_of
from k8e.mcp.results import Fields, encoded, raw_text, told, visible, with_notes

__all__ = ["FILES", "READ_BYTES", "list_files", "read", "write"]

READ_BYTES = 16 * 1024 * 1024
"""Of a picture or a sound in one answer."""
HEAD_BYTES = 4096
FILES = 5000
"""That are looked at for one list: more of them help nobody."""
SMALLER = "make it smaller, such as a picture of fewer pixels, or read it in parts with offset and length."
IN_PARTS = "It is too long for one answer: read it in parts with offset and length."
REPLACED = "\N{REPLACEMENT CHARACTER}"


async def write(call: ToolCall) -> types.CallToolResult:
    args = call.args
    content = args.text("content")
    data = decoded(content) if args.text("encoding") == "base64" else content.encode()

    async def work(session_id: str) -> int:
        return await call.client.write_file(session_id, args.text("path"), data, args.text("mode") or "w")

    done = await call.in_session(work)
    return told(with_notes({"ok": True, "size": done.value}, done.note))


def decoded(content: str) -> bytes:
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"content: is not base64 ({error})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One file that is read, and how much of it the answer has room for."""

    call: ToolCall
    session_id: str
    path: str
    size: int
    most: int

    async def bytes(self, offset: int, length: int) -> bytes:
        return await self.call.client.read_bytes(self.session_id, self.path, offset=offset, length=length)

    def links(self, offset: int) -> list[types.ResourceLink]:
        return links_to(
            self.call.context.protocol_version,
            self.session_id,
            self.path,
            title="What is left out, page by page",
            mime_type=contents.mime_of(self.path, contents.BYTES),
            size=self.size,
            offset=offset,
        )


async def read(call: ToolCall) -> types.CallToolResult:
    """Only as content: clients that prefer structured content would not show the picture."""
    path, most = call.args.text("path"), await call.most_chars()

    async def look(session_id: str) -> int:
        return (await call.client.stat(session_id, path)).size

    found = await call.in_session(look)
    reading = Reading(call=call, session_id=found.session_id, path=path, size=found.value, most=most)
    offset = call.args.whole("offset")
    # What a file is shows at its beginning; a part of it may look like anything.
    first = await reading.bytes(0, HEAD_BYTES if offset else needed_bytes(most))
    # The kernel's own files say that they are empty.
    reading = replace(reading, size=max(reading.size, len(first)))
    kind = contents.kind_of(path, first)
    is_part = call.args.has("offset") or call.args.has("length")
    if kind.form == "text":
        blocks = await (text_part(reading, offset) if is_part else text_ends(reading, first))
    elif is_part:
        blocks = await bytes_part(reading, offset)
    else:
        blocks = await whole(reading, kind)
    return types.CallToolResult(content=blocks)


async def text_ends(reading: Reading, first: bytes) -> list[types.ContentBlock]:
    """A text, or its beginning and its end."""
    half = needed_bytes(reading.most) // 2
    last_at = max(len(first), reading.size - half)
    last = await reading.bytes(last_at, half) if last_at < reading.size else b""
    part = shown(Ends.of(first, last, reading.size), reading.most, len)
    if not part.is_cut:
        return [raw_text(part.text), *notes(part.text)]
    said = f"bytes 0 to {part.begin} and {part.end} to {part.total} of {part.total}; {rest(part.begin)}"
    return [raw_text(part.text), *notes(part.text, said), *reading.links(part.begin)]


async def text_part(reading: Reading, offset: int) -> list[types.ContentBlock]:
    wanted = reading.call.args.whole("length") or needed_bytes(reading.most)
    length = min(max(wanted, contents.CHAR_BYTES), needed_bytes(reading.most))
    data = await reading.bytes(offset, length)
    text, taken = contents.text_of(data, is_whole=offset + len(data) >= reading.size)
    if len(text) > reading.most:
        text, taken = beginning(data, reading.most, len)
    end = offset + taken
    said = part_of(offset, end, reading.size) if offset or end < reading.size else ""
    return [raw_text(text), *notes(text, said)]


async def whole(reading: Reading, kind: contents.Kind) -> list[types.ContentBlock]:
    said = f"{visible(reading.path)}: {kind.mime}, {reading.size} bytes"
    if kind.form != "blob" and reading.size > READ_BYTES:
        return [raw_text(f"{said}. It is too large for one answer: {SMALLER}")]
    if kind.form == "blob" and reading.size > exact_bytes(reading.most):
        return [raw_text(f"{said}. {IN_PARTS}"), *reading.links(0)]
    return [block(reading, kind, await reading.bytes(0, reading.size)), raw_text(said)]


async def bytes_part(reading: Reading, offset: int) -> list[types.ContentBlock]:
    """As bytes: half a picture is none."""
    most = exact_bytes(reading.most)
    data = await reading.bytes(offset, min(reading.call.args.whole("length") or most, most))
    said = f"{visible(reading.path)}: {part_of(offset, offset + len(data), reading.size)}"
    return [block(reading, contents.Kind("blob", contents.BYTES), data), raw_text(said)]


def exact_bytes(chars: int) -> int:
    """How many bytes so many characters of base64 are."""
    return chars // 4 * 3


def block(reading: Reading, kind: contents.Kind, data: bytes) -> types.ContentBlock:
    text = encoded(data)
    match kind.form:
        case "image":
            return types.ImageContent(type="image", data=text, mime_type=kind.mime)
        case "audio":
            return types.AudioContent(type="audio", data=text, mime_type=kind.mime)
    uri = uri_of(reading.session_id, reading.path)
    return types.EmbeddedResource(
        type="resource", resource=types.BlobResourceContents(uri=uri, mime_type=kind.mime, blob=text)
    )


def notes(text: str, said: str = "") -> list[types.TextContent]:
    """Beside a text that is not all, or not exactly, what is in the file."""
    lines = [f"[{said}]"] if said else []
    if REPLACED in text:
        lines.append(f"[bytes that are not UTF-8 are shown as {REPLACED}]")
    return [raw_text(" ".join(lines))] if lines else []


def part_of(begin: int, end: int, size: int) -> str:
    return f"bytes {begin} to {end} of {size}{f'; {rest(end)}' if end < size else ''}"


def rest(offset: int) -> str:
    return f"for the rest read again with offset {offset}"


async def list_files(call: ToolCall) -> types.CallToolResult:
    """By path, so that the next part of a list can go on where this one ends."""
    most, after = await call.most_chars(), call.args.text("after")

    async def look(session_id: str) -> list[Fields]:
        found = await call.client.list_files(session_id, call.args.whole("since"), limit=FILES + 1)
        return [{"path": visible(each.path), "modified": int(each.modified), "size": each.size} for each in found]

    done = await call.in_session(look)
    files = sorted(done.value[:FILES], key=lambda each: str(each["path"]))
    following = [each for each in files if each["path"] > after]
    listed = fitting(following, most, entry_chars)
    said = [done.note]
    if len(listed) < len(following):
        last = json.dumps(listed[-1]["path"], ensure_ascii=False)
        said.append(f"{len(following) - len(listed)} more files: call again with after {last}.")
    elif len(done.value) > FILES:
        said.append(f"Only the first {FILES} files are looked at: for the others use since, or `find` in sandbox_exec.")
    fields: Fields = {"files": listed}
    if len(listed) < len(following) or len(done.value) > FILES:
        fields["truncated"] = True
    return told(with_notes(fields, *said))


def entry_chars(entry: Fields) -> int:
    return len(json.dumps(entry, ensure_ascii=False)) + len(", ")
