"""OCI images on disk, a layout directory or a tar of one, flattened into one root file system.

Every blob is checked against its digest before a byte of it is used.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from k8e.errors import InvalidSpec
from k8e.substrate.local.images import layer
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["unpack"]

_MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_CHUNK = 1 << 20
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEX_TYPES = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)
_MAX_DEPTH = 4
_MEMBER = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")

Document = dict[str, Any]


def unpack(path: Path, target: Path) -> None:
    """Write the image's root file system into the empty directory `target`. Raises: InvalidSpec."""
    with _layout(path, scratch=target.parent) as layout:
        for descriptor in _layers(layout):
            _apply(layout, descriptor, target)


@contextmanager
def _layout(path: Path, *, scratch: Path) -> Iterator[Path]:
    if path.is_dir():
        yield path
        return
    with TemporaryDirectory(dir=scratch, prefix=UNFINISHED) as directory:
        try:
            with tarfile.open(path) as archive:
                _extract(archive, Path(directory))
        except (tarfile.TarError, OSError) as error:
            raise InvalidSpec(f"{path} is not an OCI image archive: {error}", field="image") from error
        if not (Path(directory) / "oci-layout").exists():
            raise InvalidSpec(f"{path} holds no oci-layout (save it as an OCI archive)", field="image")
        yield Path(directory)


def _extract(archive: tarfile.TarFile, directory: Path) -> None:
    """Only plain files with the names a layout has: no other member can do any harm."""
    (directory / "blobs" / "sha256").mkdir(parents=True)
    for member in archive:
        name = member.name.removeprefix("./")
        content = archive.extractfile(member) if member.isreg() and _MEMBER.fullmatch(name) else None
        if content is not None:
            with content, (directory / name).open("wb") as file:
                shutil.copyfileobj(content, file)


def _layers(layout: Path) -> list[Document]:
    index = _read_json(layout / "index.json")
    manifest = _manifest(layout, index)
    return cast("list[Document]", manifest.get("layers", []))


def _manifest(layout: Path, index: Document) -> Document:
    """The image manifest for this machine, through nested indexes."""
    for _ in range(_MAX_DEPTH):
        chosen = _choose(cast("list[Document]", index.get("manifests", [])))
        document = json.loads(_blob(layout, chosen).read_bytes())
        if chosen.get("mediaType") not in _INDEX_TYPES and "manifests" not in document:
            return cast("Document", document)
        index = document
    raise InvalidSpec("image indexes are nested too deeply", field="image")


def _choose(manifests: list[Document]) -> Document:
    wanted = _MACHINES.get(platform.machine(), platform.machine())
    for descriptor in manifests:
        architecture = descriptor.get("platform", {}).get("architecture", wanted)
        if architecture == wanted:
            return descriptor
    raise InvalidSpec(f"the image has no manifest for {wanted}", field="image")


def _blob(layout: Path, descriptor: Document) -> Path:
    """The blob's file, proven to be what its descriptor says."""
    algorithm, _, value = str(descriptor.get("digest", "")).partition(":")
    if algorithm != "sha256" or len(value) != 64 or not value.isalnum():
        raise InvalidSpec(f"unsupported digest {descriptor.get('digest')!r}", field="image")
    path = layout / "blobs" / algorithm / value
    try:
        found = _sha256(path)
    except OSError as error:
        raise InvalidSpec(f"blob {value[:12]} is missing", field="image") from error
    if found != value:
        raise InvalidSpec(f"blob {value[:12]} does not match its digest", field="image")
    return path


def _sha256(path: Path) -> str:
    seen = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            seen.update(chunk)
    return seen.hexdigest()


def _read_json(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(_MAX_DOCUMENT_BYTES))
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"{path.name} cannot be read: {error}", field="image") from error
    if not isinstance(document, dict):
        raise InvalidSpec(f"{path.name} is not an object", field="image")
    return document


def _apply(layout: Path, descriptor: Document, target: Path) -> None:
    kind = str(descriptor.get("mediaType", ""))
    if "zstd" in kind:
        raise InvalidSpec("zstd layers are not supported; save the image with gzip layers", field="image")
    try:
        with tarfile.open(_blob(layout, descriptor), mode="r:*") as archive:
            layer.apply(archive, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidSpec(f"a layer cannot be unpacked: {error}", field="image") from error
