"""Files below /workspace of the client's sessions as resources: `k8e://<session><path>`."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from k8e.client import AsyncSandboxClient, FileInfo
from k8e.client.errors import NotFound, SandboxError
from k8e.mcp import contents
from k8e.mcp.results import encoded, visible
from k8e.mcp.scope import ClientScope

__all__ = ["TEMPLATE", "Resources", "uri_of"]

TEMPLATE = "k8e://{session_id}{+path}"
WORKSPACE = "/workspace"
PAGE = 100
READ_BYTES = 16 * 1024 * 1024
FILES = 5000
"""Of one session among the resources; the others can be read all the same."""
REFUSED = -32010
MISSING = -32002
"""As every revision until 2025-11-25 has it; later ones call it a wrong parameter."""
UNSEEN = re.compile(r"/(\.venv|\.git|node_modules|__pycache__|\.cache|\.npm)/")
"""What programs put there for themselves: it would bury the rest. It can still be read."""

_URI = re.compile(r"k8e://([^/?#]+)(/[^?#]*)")


def uri_of(session_id: str, path: str) -> str:
    whole = path if path.startswith("/") else f"{WORKSPACE}/{path}"
    return f"k8e://{quote(session_id, safe='')}{quote(whole.encode('utf-8', 'surrogateescape'))}"


@dataclass(frozen=True, slots=True)
class Place:
    session_id: str
    path: str


def place_of(uri: str) -> Place | None:
    """None for what is no file of a workspace."""
    match = _URI.fullmatch(uri)
    path = posixpath.normpath(unquote(match[2], errors="surrogateescape")) if match else ""
    if match is None or not path.startswith(f"{WORKSPACE}/"):
        return None
    return Place(unquote(match[1], errors="surrogateescape"), path)


class Resources:
    def __init__(self, client: AsyncSandboxClient, scope: ClientScope) -> None:
        self._client = client
        self._scope = scope

    def templates(self) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="workspace-file",
            title="File of a sandbox",
            uri_template=TEMPLATE,
            description="A file below /workspace of a session, by the session's id and the file's path.",
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
            raise missing(uri, f"{uri} is not a resource here: they look like {TEMPLATE}, below {WORKSPACE}", revision)
        try:
            size = (await self._client.stat(place.session_id, place.path)).size
            if size > READ_BYTES:
                text = f"{uri} has {size} bytes, more than {READ_BYTES}: read it in parts with sandbox_read_file"
                raise MCPError(code=REFUSED, message=text)
            data = await self._client.read_bytes(place.session_id, place.path, length=READ_BYTES)
        except NotFound as error:
            raise missing(uri, visible(str(error)), revision) from error
        except SandboxError as error:
            raise MCPError(code=REFUSED, message=f"{visible(str(error))}. {error.remedy}") from error
        return types.ReadResourceResult(contents=[content(uri, place.path, data)])

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


def content(uri: str, path: str, data: bytes) -> types.TextResourceContents | types.BlobResourceContents:
    kind = contents.kind_of(path, data)
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
