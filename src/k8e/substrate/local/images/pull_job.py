"""What the server tells the program that pulls an image (`pull`), as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from k8e.substrate.local.images.registries import Source

__all__ = ["Candidate", "Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One meaning of the name, and where to ask for it."""

    name: str
    version: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    candidates: tuple[Candidate, ...]
    only_look: bool = False
    """Whether it is only asked what the name means; the rest is for an image that is pulled."""
    known: tuple[str, ...] = ()
    """Digests of images that are here: they are only found, not pulled."""
    scratch: str = ""
    """An empty directory; the image's root file system is `root` in it afterwards."""
    max_bytes: int = 0
    room: int = 0
    """Bytes that there can be for one more image beside those that are in use."""
    keep_free: int = 0
    """Bytes of the disk that are left alone."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Job:
        fields = json.loads(text)
        candidates = tuple(
            Candidate(**{**each, "sources": tuple(Source(**source) for source in each["sources"])})
            for each in fields["candidates"]
        )
        return cls(**{**fields, "candidates": candidates, "known": tuple(fields["known"])})
