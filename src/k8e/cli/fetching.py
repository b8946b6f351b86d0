"""From a session to here. What runs there is not trusted: it chooses names, links and types, but not where they land."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

from k8e.cli.landing import Landing, parts_below, stays_below
from k8e.cli.output import say
from k8e.cli.table import printable
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Answer, Calls, encoded, exact

__all__ = ["download"]

WORKSPACE = "/workspace"

Add = Callable[[int, int], None]


def download(calls: Calls, session_id: str, source: str, target: Path, add: Add) -> None:
    """Copy a file, or everything below a directory. Raises: SandboxError."""
    asked = {"session_id": session_id, "path_bytes": encoded(source)}
    found = calls.unary("StatFile", asked)
    path = posixpath.normpath(posixpath.join(WORKSPACE, source))
    match found.text("type"):
        case "file":
            place = target / posixpath.basename(path) if target.is_dir() else target
            with Landing(place.parent) as landing:
                landing.file((place.name,), found.number("mode"), content(calls, session_id, path, add))
        case "directory":
            listed = calls.unary("ListDirectory", {**asked, "recursive": True}).each("files")
            # Every name is judged before the first byte is written.
            entries = sorted(
                ((parts_below(path, exact(each, "path")), each) for each in listed), key=lambda pair: pair[0]
            )
            with Landing(target) as landing:
                for parts, entry in entries:
                    land(calls, session_id, landing, parts, entry, add)
        case _:
            raise InvalidRequest(f"{printable(source)} is neither a file nor a directory")


def land(calls: Calls, session_id: str, landing: Landing, parts: tuple[str, ...], entry: Answer, add: Add) -> None:
    path, mode = exact(entry, "path"), entry.number("mode")
    match entry.text("type"):
        case "directory":
            landing.directory(parts, mode)
        case "file":
            landing.file(parts, mode, content(calls, session_id, path, add))
        case "symlink":
            link = entry.data("target").decode("utf-8", "surrogateescape")
            if stays_below(parts, link):
                landing.link(parts, link)
            else:
                say(f"left out, because it points out of the tree: {printable(path)} -> {printable(link)}")
        case _:
            say(f"left out, because it is no file: {printable(path)}")


def content(calls: Calls, session_id: str, path: str, add: Add) -> Iterator[bytes]:
    for chunk in calls.stream("ReadStream", [{"session_id": session_id, "path_bytes": encoded(path)}]):
        data = chunk.data("data")
        add(0, len(data))
        yield data
    add(1, 0)
