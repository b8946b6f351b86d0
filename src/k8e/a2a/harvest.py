"""Which files a run has written, and which of them go with its task; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from a2a.types import Artifact, Part

from k8e.a2a.paths import WORKSPACE, is_of_interest, media_type
from k8e.client.values import FileInfo

__all__ = ["FILES", "FILES_BYTES", "FILE_BYTES", "Harvest", "Seen", "file_artifact", "seen"]

FILES = 16
"""Attached to one task at most."""
FILE_BYTES = 4 * 1024 * 1024
FILES_BYTES = 8 * 1024 * 1024
LISTED = 100
"""Named in a result at most."""

Seen = tuple[float, int]
"""When a file was changed, and its size."""


def seen(files: Iterable[FileInfo]) -> Mapping[str, Seen]:
    return {file.path: (file.modified, file.size) for file in files}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was written below /workspace while programs ran."""

    written: tuple[tuple[str, int], ...] = ()
    """Paths with sizes, the first `LISTED`."""
    attached: tuple[str, ...] = ()
    """Those that are sent along."""
    unlisted: int = 0
    trouble: str = ""
    """Why nobody knows."""

    @classmethod
    def of(cls, before: Mapping[str, Seen], after: Iterable[FileInfo]) -> Harvest:
        """New and changed files, by path; attached in this order while there is room."""
        changed = sorted(
            (file.path, file.size)
            for file in after
            if file.type == "file" and before.get(file.path) != (file.modified, file.size) and is_of_interest(file.path)
        )
        attached: list[str] = []
        room = FILES_BYTES
        for path, size in changed:
            if len(attached) < FILES and size <= min(FILE_BYTES, room):
                attached.append(path)
                room -= size
        return cls(written=tuple(changed[:LISTED]), attached=tuple(attached), unlisted=max(0, len(changed) - LISTED))


def file_artifact(path: str, data: bytes) -> Artifact:
    name = path.removeprefix(WORKSPACE).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    part = Part(raw=data, filename=name, media_type=media_type(path))
    return Artifact(artifact_id=f"file:{name}", name=name, parts=[part])
