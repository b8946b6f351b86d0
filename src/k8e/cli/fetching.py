"""From a session to here. What runs there is not trusted: it chooses names, links and types, but not where they land."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path

from k8e.cli.output import say
from k8e.client.errors import InvalidRequest
from k8e.client.landing import Landing, link_stays_inside, parts_below
from k8e.client.light.calls import Answer, Calls, encoded, exact, listed
from k8e.visible import shown

__all__ = ["download"]

WORKSPACE = "/workspace"

Add = Callable[[int, int], None]
Entries = list[tuple[tuple[str, ...], Answer]]


def download(calls: Calls, session_id: str, source: str, target: Path, add: Add) -> None:
    """Copy a file, or everything below a directory. Raises: SandboxError."""
    asked = {"session_id": session_id, "path_bytes": encoded(source)}
    found = calls.unary("StatFile", asked)
    path = posixpath.normpath(posixpath.join(WORKSPACE, source))
    match found.text("type"):
        case "file":
            place = target / posixpath.basename(path) if target.is_dir() else target
            Landing(place.parent).file((place.name,), found.number("mode"), content(calls, session_id, path, add))
        case "directory":
            found_below = listed(calls, "ListDirectory", {**asked, "recursive": True}, "files")
            # Every name is judged before the first byte is written.
            entries = sorted(
                ((parts_below(path, exact(each, "path")), each) for each in found_below), key=lambda pair: pair[0]
            )
            land_all(calls, session_id, Landing(target), entries, add)
        case _:
            raise InvalidRequest(f"{shown(source)} is neither a file nor a directory")


def land_all(calls: Calls, session_id: str, landing: Landing, entries: Entries, add: Add) -> None:
    landing.make_directory(())
    for parts, entry in entries:
        match entry.text("type"):
            case "directory":
                landing.make_directory(parts)
            case "file":
                landing.file(parts, entry.number("mode"), content(calls, session_id, exact(entry, "path"), add))
            case "symlink":
                pass
            case _:
                say(f"left out, because it is no file: {shown(exact(entry, 'path'))}")
    # SAFETY: links come after all files: nothing is written while one from the sandbox is there.
    for parts, entry in entries:
        if entry.text("type") == "symlink":
            link(landing, parts, entry)
    # The deepest first: a directory may lose its own permission to be entered.
    for parts, entry in reversed(entries):
        if entry.text("type") == "directory":
            landing.set_mode(parts, entry.number("mode"))


def link(landing: Landing, parts: tuple[str, ...], entry: Answer) -> None:
    target = entry.data("target").decode("utf-8", "surrogateescape")
    if link_stays_inside(parts, target):
        landing.link(parts, target)
    else:
        say(f"left out, because it points out of the tree: {shown(exact(entry, 'path'))} -> {shown(target)}")


def content(calls: Calls, session_id: str, path: str, add: Add) -> Iterator[bytes]:
    for chunk in calls.stream("ReadStream", [{"session_id": session_id, "path_bytes": encoded(path)}]):
        data = chunk.data("data")
        add(0, len(data))
        yield data
    add(1, 0)
