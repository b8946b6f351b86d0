"""Files of sessions as resources: `k8e://<session><path>`, whole, or `?offset=…&length=…` a part of one.

They are those below /workspace, which are listed, and the output that answers had no room for. A part is followed by the
address of the next one.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least

from k8e.client import AsyncSandboxClient, FileInfo
from k8e.client.errors import NotFound, SandboxError
from k8e.mcp import contents
from k8e.mcp.bounds import DEFAULT_CHARS, shorter
from k8e.mcp.results import encoded, visible
from k8e.mcp.scope import ClientScope

__all__ = ["OUTPUTS", "TEMPLATE", "Resources", "links_to", "uri_of"]

TEMPLATE = "k8e://{session_id}{+path}{?offset,length}"
WORKSPACE = "/workspace"
OUTPUTS = "/tmp/k8e-output"  # noqa: S108  # inside the sandbox
"""Where output is that answers had no room for; see `outputs`."""
PAGE = 100
READ_BYTES = 16 * 1024 * 1024
PART_BYTES = DEFAULT_CHARS
"""Of a part, where its address does not say."""
URI_CHARS = 1000
HEAD_BYTES = 4096
WITH_LINKS = "2025-06-18"
"""The first revision whose answers have links."""
FILES = 5000
"""Of one session among the resources; the others can be read all the same."""
REFUSED = -32010
MISSING = -32002
"""As every revision until 2025-11-25 has it; later ones call it a wrong parameter."""
UNSEEN = re.compile(r"/(\.venv|\.git|node_modules|__pycache__|\.cache|\.npm)/")
"""What programs put there for themselves: it would bury the rest. It can still be read."""

Content = types.TextResourceContents | types.BlobResourceContents

_URI = re.compile(r"k8e://([^/?#]+)(/[^?#]*)(?:\?([a-z0-9=&]+))?")
_NUMBER = re.compile(r"[0-9]{1,18}")


def uri_of(session_id: str, path: str, *, offset: int | None = None, length: int = PART_BYTES) -> str:
    """Of a file, or of a part of it."""
    whole = path if path.startswith("/") else f"{WORKSPACE}/{path}"
    part = "" if offset is None else f"?offset={offset}&length={length}"
    return f"k8e://{quote(session_id, safe='')}{quote(whole.encode('utf-8', 'surrogateescape'))}{part}"


@dataclass(frozen=True, slots=True)
class Place:
    session_id: str
    path: str
    offset: int | None
    """Of a part; None for the whole file, which output that was too long for an answer never is."""
    length: int


def place_of(uri: str) -> Place | None:
    """None for what is no file that can be a resource."""
    match = _URI.fullmatch(uri)
    path = posixpath.normpath(unquote(match[2], errors="surrogateescape")) if match else ""
    if match is None or not path.startswith((f"{WORKSPACE}/", f"{OUTPUTS}/")):
        return None
    pairs = [each.partition("=") for each in match[3].split("&")] if match[3] else []
    asked = {name: int(value) for name, _, value in pairs if _NUMBER.fullmatch(value)}
    if len(asked) != len(pairs) or not asked.keys() <= {"offset", "length"}:
        return None
    offset = asked.get("offset", 0) if asked or path.startswith(f"{OUTPUTS}/") else None
    length = min(max(asked.get("length", PART_BYTES), contents.CHAR_BYTES), READ_BYTES)
    return Place(unquote(match[1], errors="surrogateescape"), path, offset, length)


def links_to(
    revision: str, session_id: str, path: str, *, title: str, mime_type: str, size: int, offset: int
) -> list[types.ResourceLink]:
    """To the part of a file that begins there; none where it can be no resource, or the revision has no links."""
    uri = uri_of(session_id, path, offset=offset)
    if not is_version_at_least(revision, WITH_LINKS) or place_of(uri) is None:
        return []
    name = visible(posixpath.basename(path))
    return [types.ResourceLink(name=name, title=title, uri=uri, mime_type=mime_type, size=size)]


class Resources:
    def __init__(self, client: AsyncSandboxClient, scope: ClientScope) -> None:
        self._client = client
        self._scope = scope

    def templates(self) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="workspace-file",
            title="File of a sandbox",
            uri_template=TEMPLATE,
            description="A file below /workspace of a session, by the session's id and the file's path; a part of it with "
            "offset and length, in bytes.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def page(self, cursor: str | None) -> types.ListResourcesResult:
        """Sessions by id, files by path, so many of them; a cursor is where the page before ended."""
        after = last = parsed_cursor(cursor) if cursor else ("", "")
        found: list[types.Resource] = []
        for session_id in sorted(await self._scope.sessions()):
            for each in await self._files(session_id) if session_id >= after[0] else ():
                if (session_id, each.path) <= after:
                    continue
                if len(found) == PAGE:
                    return types.ListResourcesResult(resources=found, next_cursor=made_cursor(*last))
                found.append(resource(session_id, each))
                last = session_id, each.path
        return types.ListResourcesResult(resources=found)

    async def read(self, uri: str, revision: str) -> types.ReadResourceResult:
        place = place_of(uri)
        if place is None:
            text = f"{shorter(uri, URI_CHARS)} is not a resource here: they look like {TEMPLATE}, below {WORKSPACE}"
            raise missing(uri, text, revision)
        try:
            found = await (self._whole(uri, place) if place.offset is None else self._part(uri, place, place.offset))
        except NotFound as error:
            raise missing(uri, visible(str(error)), revision) from error
        except SandboxError as error:
            raise MCPError(code=REFUSED, message=f"{visible(str(error))}. {error.remedy}") from error
        return types.ReadResourceResult(contents=found)

    async def _whole(self, uri: str, place: Place) -> list[Content]:
        size = (await self._client.stat(place.session_id, place.path)).size
        if size > READ_BYTES:
            part = uri_of(place.session_id, place.path, offset=0)
            text = (
                f"{uri} has {size} bytes, more than {READ_BYTES}: read it in parts, by {part} or with sandbox_read_file"
            )
            raise MCPError(code=REFUSED, message=text)
        data = await self._client.read_bytes(place.session_id, place.path, length=READ_BYTES)
        return [content(uri, contents.kind_of(place.path, data), data)]

    async def _part(self, uri: str, place: Place, offset: int) -> list[Content]:
        """And, unless it was the last one, a word about the next, under its address."""
        size = (await self._client.stat(place.session_id, place.path)).size
        data = await self._client.read_bytes(place.session_id, place.path, offset=offset, length=place.length)
        # What a file is shows at its beginning; a part of it may look like anything.
        head = await self._client.read_bytes(place.session_id, place.path, length=HEAD_BYTES)
        kind = contents.kind_of(place.path, head)
        end = offset + len(data)
        if kind.form == "text" and end < size:
            # Where there is only a part of a character, that is all that ever comes.
            end = offset + (contents.text_of(data, is_whole=False)[1] or len(data))
        if not (offset == 0 and end >= size) and kind.form != "text":
            kind = contents.Kind("blob", contents.BYTES)  # half a picture is none
        found = [content(uri, kind, data[: end - offset])]
        if not data or end >= size:
            return found
        following = uri_of(place.session_id, place.path, offset=end, length=place.length)
        said = f"[bytes {offset} to {end} of {size}; the next are {following}]"
        return [*found, types.TextResourceContents(uri=following, mime_type=contents.TEXT, text=said)]

    async def _files(self, session_id: str) -> list[FileInfo]:
        try:
            found = await self._client.list_files(session_id, limit=FILES)
        except SandboxError:
            return []  # it has ended meanwhile, or has no files to show
        files = (each for each in found if each.type == "file" and not UNSEEN.search(each.path))
        return sorted(files, key=lambda each: each.path)


def missing(uri: str, text: str, revision: str) -> MCPError:
    code = types.INVALID_PARAMS if revision in MODERN_PROTOCOL_VERSIONS else MISSING
    return MCPError(code=code, message=text, data={"uri": uri})


def resource(session_id: str, file: FileInfo) -> types.Resource:
    return types.Resource(
        uri=uri_of(session_id, file.path),
        name=visible(file.path.removeprefix(f"{WORKSPACE}/")),
        mime_type=contents.mime_of(file.path, contents.BYTES),
        size=file.size,
    )


def content(uri: str, kind: contents.Kind, data: bytes) -> Content:
    if kind.form == "text":
        text, _ = contents.text_of(data, is_whole=True)
        return types.TextResourceContents(uri=uri, mime_type=kind.mime, text=text)
    return types.BlobResourceContents(uri=uri, mime_type=kind.mime, blob=encoded(data))


def made_cursor(session_id: str, path: str) -> str:
    return base64.urlsafe_b64encode(f"{session_id}\0{path}".encode("utf-8", "surrogateescape")).decode("ascii")


def parsed_cursor(cursor: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("utf-8", "surrogateescape")
        session_id, path = text.split("\0")
    except (binascii.Error, ValueError) as error:
        raise MCPError(code=types.INVALID_PARAMS, message="cursor: is not one of ours") from error
    return session_id, path
