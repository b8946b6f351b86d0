"""Tools about files: write, read, list. What is read comes as what it is; a picture can be looked at."""

from __future__ import annotations

import base64
import binascii

import mcp_types as types

from k8e.client.errors import InvalidRequest
from k8e.mcp import contents
from k8e.mcp.calls import ToolCall
from k8e.mcp.resources import uri_of
from k8e.mcp.results import encoded, raw_text, told, visible

__all__ = ["FILES", "READ_BYTES", "list_files", "read", "write"]

READ_BYTES = 16 * 1024 * 1024
"""In one answer; the rest of a longer file is read from an offset."""
HEAD_BYTES = 4096
FILES = 5000
"""In one list: more of them help nobody."""
SMALLER = "make it smaller, such as a picture of fewer pixels, or read it in parts with offset and length."
REPLACED = "\N{REPLACEMENT CHARACTER}"


async def write(call: ToolCall) -> types.CallToolResult:
    args = call.args
    content = args.text("content")
    data = decoded(content) if args.text("encoding") == "base64" else content.encode()
    size = await call.client.write_file(call.session_id, args.text("path"), data, args.text("mode") or "w")
    return told({"ok": True, "size": size})


def decoded(content: str) -> bytes:
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"content: is not base64 ({error})") from error


async def read(call: ToolCall) -> types.CallToolResult:
    """Only as content: clients that prefer structured content would not show the picture."""
    path, offset = call.args.text("path"), call.args.whole("offset")
    wanted = call.args.whole("length")
    size = (await call.client.stat(call.session_id, path)).size
    length = min(wanted or READ_BYTES, READ_BYTES)
    data = await call.client.read_bytes(call.session_id, path, offset=offset, length=length)
    # What a file is shows at its beginning; a part of it may look like anything.
    head = await call.client.read_bytes(call.session_id, path, length=HEAD_BYTES) if offset else data
    kind = contents.kind_of(path, head)
    is_whole = offset + len(data) >= size
    if kind.form == "text":
        text, taken = contents.text_of(data, is_whole=is_whole)
        return types.CallToolResult(content=[raw_text(text), *notes(offset, offset + taken, size, text)])
    said = f"{visible(path)}: {kind.mime}, {part(offset, offset + len(data), size)}"
    if not is_whole and not wanted:
        return types.CallToolResult(content=[raw_text(f"{said}. It is too large for one answer: {SMALLER}")])
    if offset or not is_whole:
        kind = contents.Kind("blob", contents.BYTES)  # half a picture is none
    return types.CallToolResult(content=[block(call, path, kind, data), raw_text(said)])


def block(call: ToolCall, path: str, kind: contents.Kind, data: bytes) -> types.ContentBlock:
    text = encoded(data)
    match kind.form:
        case "image":
            return types.ImageContent(type="image", data=text, mime_type=kind.mime)
        case "audio":
            return types.AudioContent(type="audio", data=text, mime_type=kind.mime)
    resource = types.BlobResourceContents(uri=uri_of(call.session_id, path), mime_type=kind.mime, blob=text)
    return types.EmbeddedResource(type="resource", resource=resource)


def notes(begin: int, end: int, size: int, text: str) -> list[types.TextContent]:
    """Said beside a text that is not all, or not exactly, what is in the file."""
    said = [f"[{part(begin, end, size)}]"] if end < size or begin else []
    if REPLACED in text:
        said.append(f"[bytes that are not UTF-8 are shown as {REPLACED}]")
    return [raw_text(" ".join(said))] if said else []


def part(begin: int, end: int, size: int) -> str:
    if not begin and end >= size:
        return f"{size} bytes"
    rest = f"; for the rest read again with offset {end}" if end < size else ""
    return f"bytes {begin} to {end} of {size}{rest}"


async def list_files(call: ToolCall) -> types.CallToolResult:
    found = await call.client.list_files(call.session_id, call.args.whole("since"), limit=FILES + 1)
    files = [{"path": visible(each.path), "modified": int(each.modified), "size": each.size} for each in found[:FILES]]
    if len(found) <= FILES:
        return told({"files": files})
    note = f"Only the first {FILES} files are shown: for the others use since, or `find` in sandbox_exec."
    return told({"files": files, "truncated": True, "note": note})
