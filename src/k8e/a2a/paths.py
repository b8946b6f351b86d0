"""Names of files that come with messages and go with artifacts; pure."""

from __future__ import annotations

import mimetypes

__all__ = ["WORKSPACE", "is_of_interest", "media_type", "workspace_path"]

WORKSPACE = "/workspace/"
PATH_BYTES = 1024
NAME_BYTES = 255

_TYPES = mimetypes.MimeTypes()
"""The standard library's own table: what a host has in /etc must not change an answer."""
_LEFTOVERS = frozenset({"__pycache__", "node_modules"})


def workspace_path(name: str) -> str | None:
    """A relative name, or one below /workspace, as a full path; None for anything that is neither."""
    below = name.removeprefix(WORKSPACE)
    parts = [part for part in below.split("/") if part not in {"", "."}]
    is_wrong = (
        not parts
        or below.startswith("/")
        or below.endswith("/")
        or ".." in parts
        or not all(character.isprintable() and character != "\\" for character in below)
        or len(below.encode("utf-8", "surrogateescape")) > PATH_BYTES
        or any(len(part.encode("utf-8", "surrogateescape")) > NAME_BYTES for part in parts)
    )
    return None if is_wrong else WORKSPACE + "/".join(parts)


def is_of_interest(path: str) -> bool:
    """Whether a written file is worth sending: not what tools leave behind for themselves."""
    parts = path.removeprefix(WORKSPACE).split("/")
    return not any(part.startswith(".") or part in _LEFTOVERS for part in parts)


def media_type(path: str) -> str:
    kind, encoding = _TYPES.guess_type(path)
    return kind if kind and not encoding else "application/octet-stream"
