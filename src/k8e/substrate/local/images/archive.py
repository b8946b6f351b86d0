"""OCI images on disk, a layout directory or a tar of one, flattened into one root file system.

Every blob is checked against its digest before a byte of it is used, and a layer is read through bounds: its writer may be
anybody.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import platform
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

from k8e.errors import InvalidSpec
from k8e.substrate.local.images import layer
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["DIGEST", "Document", "choose", "environment", "layers", "machine", "unpack"]

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
_MAX_HEADER_BYTES = 1 << 20
_MAX_VARIABLES = 1000
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MEMBER = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Document = dict[str, Any]


def unpack(path: Path, target: Path, room: layer.Room | None = None) -> dict[str, str]:
    """Write the image's root file system into the empty directory `target`, within `room`.

    Returns: the variables that the image sets. Raises: InvalidSpec.
    """
    room = room or layer.Room()
    with _layout(path, scratch=target.parent) as layout:
        manifest = _manifest(layout, _read_json(layout / "index.json"))
        for descriptor in layers(manifest):
            _apply(_blob(layout, descriptor), target, room)
        config = _config(layout, manifest)
        _check_machine(config)
        return environment(config)


def layers(manifest: Document) -> list[Document]:
    """Raises: InvalidSpec, for what is no manifest of an image."""
    found = manifest.get("layers")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InvalidSpec("its manifest lists no layers", field="image")
    return cast("list[Document]", found)


def environment(config: Document) -> dict[str, str]:
    """`Env` of the image's configuration, as far as it is well-formed and not too large."""
    inner = config.get("config")
    given = inner.get("Env") if isinstance(inner, dict) else None
    if not isinstance(given, list):
        return {}
    pairs = [each.partition("=") for each in given[:_MAX_VARIABLES] if isinstance(each, str) and _is_text(each)]
    found = {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}
    if len(json.dumps(found)) > layer.ENVIRONMENT_BYTES:
        raise InvalidSpec(f"it sets variables of more than {layer.ENVIRONMENT_BYTES} bytes", field="image")
    return found


def _is_text(value: str) -> bool:
    """Whether a program can be given it."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _check_machine(made_for: Document) -> None:
    """Raises: InvalidSpec, for an image of another kind of machine."""
    if not _is_for_us(made_for):
        raise InvalidSpec(f"the image is not made for linux on {machine()}", field="image")


def _is_for_us(made_for: Document) -> bool:
    """What says nothing is taken for ours."""
    return (made_for.get("os", "linux"), made_for.get("architecture", machine())) == ("linux", machine())


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


def _manifest(layout: Path, index: Document) -> Document:
    """The image manifest for this machine, through nested indexes."""
    for _ in range(_MAX_DEPTH):
        chosen = choose(index)
        document = _read_json(_blob(layout, chosen))
        if chosen.get("mediaType") not in _INDEX_TYPES and "manifests" not in document:
            return document
        index = document
    raise InvalidSpec("image indexes are nested too deeply", field="image")


def machine() -> str:
    """This machine's architecture, in the words of images."""
    return _MACHINES.get(platform.machine(), platform.machine())


def choose(index: Document) -> Document:
    """The entry of an index for this machine. Raises: InvalidSpec."""
    entries = index.get("manifests")
    for descriptor in entries if isinstance(entries, list) else []:
        made_for = descriptor.get("platform") if isinstance(descriptor, dict) else None
        if _is_for_us(made_for if isinstance(made_for, dict) else {}):
            return cast("Document", descriptor)
    raise InvalidSpec(f"the image is not made for linux on {machine()}", field="image")


def _config(layout: Path, manifest: Document) -> Document:
    descriptor = manifest.get("config")
    return _read_json(_blob(layout, descriptor)) if isinstance(descriptor, dict) and "digest" in descriptor else {}


def _blob(layout: Path, descriptor: Document) -> Path:
    """The blob's file, proven to be what its descriptor says."""
    digest = str(descriptor.get("digest", ""))
    if not DIGEST.fullmatch(digest):
        raise InvalidSpec(f"unsupported digest {digest!r}", field="image")
    algorithm, _, value = digest.partition(":")
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
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"{path.name} cannot be read: {error}", field="image") from error
    if not isinstance(document, dict):
        raise InvalidSpec(f"{path.name} is not an object", field="image")
    return document


def _apply(blob: Path, target: Path, room: layer.Room) -> None:
    try:
        with (
            blob.open("rb") as file,
            _decompressed(file) as content,
            tarfile.open(fileobj=cast("IO[bytes]", _BoundedReads(content)), mode="r:") as archive,
        ):
            layer.apply(archive, target, room)
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InvalidSpec(f"a layer cannot be unpacked: {error}", field="image") from error


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """By its first bytes: what a manifest calls it is not always so."""
    first = file.read(4)
    file.seek(0)
    if first == _ZSTD:
        raise InvalidSpec("its layers are compressed by zstd, which is not read here; use gzip", field="image")
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if first.startswith(_GZIP) else file


class _BoundedReads:
    """A layer as `tarfile` reads it. The headers' own sizes come from the layer, and are read in one piece."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._content.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        return self._content.tell()
