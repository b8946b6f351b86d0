"""Names of images in registries: `python:3.12-slim`, `registry.example.com/team/tools@sha256:…`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from k8e.errors import InvalidSpec

__all__ = ["Reference", "is_host", "parse"]

_MAX_CHARS = 512
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    registry: str
    """host or host:port; empty for a short name, whose registry the operator has chosen."""
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        name = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def version(self) -> str:
        """What a registry is asked for: the digest says it exactly, where there is one."""
        return self.digest or self.tag

    def at(self, registry: str, repository: str) -> Reference:
        return replace(self, registry=registry, repository=repository)

    def pinned(self, digest: str) -> Reference:
        return replace(self, digest=digest)


def is_host(text: str) -> bool:
    """Whether it is a registry's address: host or host:port."""
    return bool(_HOST.fullmatch(text))


def parse(text: str) -> Reference:
    """By the rules that everybody's tools have: the first part is a registry if it has a dot or a port. Raises: InvalidSpec."""
    name, _, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    registry, rest = (first, rest) if slash and _looks_like_host(first) else ("", name)
    repository, colon, tag = rest.partition(":")
    is_good = (
        len(text) <= _MAX_CHARS
        and (not registry or is_host(registry))
        and _REPOSITORY.fullmatch(repository)
        and (not colon or _TAG.fullmatch(tag))
        and ("@" not in text or _DIGEST.fullmatch(digest))
    )
    if not is_good:
        raise InvalidSpec(
            f"{text[:_MAX_CHARS]!r} is not the name of an image: write NAME[:TAG] or HOST/NAME[:TAG][@sha256:DIGEST], "
            "the name in small letters",
            field="image",
        )
    return Reference(registry=registry, repository=repository, tag=tag or ("" if digest else "latest"), digest=digest)


def _looks_like_host(part: str) -> bool:
    return "." in part or ":" in part or part == "localhost"
