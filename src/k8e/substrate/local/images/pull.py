"""Pulls one image, as a program of its own: `python -m k8e.substrate.local.images.pull`.

What a registry sends is taken apart here, beside the server: whatever it does to this process, a bound of memory or the
server's clock ends it. The job is one line of JSON on standard input, which stays open for as long as the server lives; every
line of standard output is progress, and the last one the result or the error.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from k8e.errors import Exhausted, HostUnsupported, InvalidSpec, K8eError
from k8e.substrate.local.images import archive, credentials, layer
from k8e.substrate.local.images.pull_job import Candidate, Job
from k8e.substrate.local.images.registries import Source
from k8e.substrate.local.images.registry import Answer, Missing, Registry, RegistryFailed, digest_of

__all__ = ["main"]

MEMORY_BYTES = 2 * 2**30
_MAX_LAYERS = 512
_SAY_EVERY_S = 0.2
_LOOK_EVERY_BYTES = 64 * 2**20
_ERROR_CHARS = 800
_DOCUMENTS = "blobs/sha256"


T = TypeVar("T")
Say = Callable[[Mapping[str, Any]], None]


def main(environ: Mapping[str, str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    job = Job.read(sys.stdin.readline())
    threading.Thread(target=_end_with_server, daemon=True).start()
    try:
        _say(_looked_up(job, environ) if job.only_look else _pulled(job, environ, _say))
    except Exception as error:  # noqa: BLE001 - the top handler of this program: whatever was sent, it ends with a word
        _say({"error": _explained(error)[:_ERROR_CHARS], "kind": _kind(error)})
        return 1
    return 0


def _end_with_server() -> None:
    sys.stdin.read()
    os._exit(1)


def _say(fields: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _kind(error: Exception) -> str:
    match error:
        case Exhausted():
            return "full"
        case Missing() | InvalidSpec():
            return "invalid"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "disk"
    return "registry"


def _explained(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"it needs more than {MEMORY_BYTES} bytes of memory to be unpacked"
    text = str(error).removeprefix("image: ")
    return text if isinstance(error, K8eError | OSError) else f"{type(error).__name__}: {text}"


def _looked_up(job: Job, environ: Mapping[str, str]) -> dict[str, Any]:
    candidate, _, digest = _found(job.candidates, environ, Registry.digest)
    return {"name": candidate.name, "digest": digest}


def _pulled(job: Job, environ: Mapping[str, str], say: Say) -> dict[str, Any]:
    candidate, source, top = _found(job.candidates, environ, Registry.manifest)
    result = {"name": candidate.name, "digest": top.digest}
    if top.digest in job.known:
        return result
    with closing(_registry(source, environ)) as registry:
        pull = _Pull(job, registry, say)
        pull.fetch(pull.manifest(top))
    say({"phase": "unpacking"})
    root = Path(job.scratch) / "root"
    root.mkdir()
    room = layer.Room(job.max_bytes, pull.check_disk)
    variables = archive.unpack(pull.layout, root, room)
    shutil.rmtree(pull.layout)
    _flush(root)
    return {**result, "env": variables, "bytes": room.taken}


def _flush(path: Path) -> None:
    """To the disk: an image is kept for long, and a crash of the machine must not leave half of its files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)


def _found(
    candidates: Iterable[Candidate], environ: Mapping[str, str], ask: Callable[[Registry, str], T]
) -> tuple[Candidate, Source, T]:
    """The first meaning of the name that exists, from the first place that has it.

    The next meaning counts only where the registry of this one says that there is none: while it is away, another
    registry must not decide what a name means. Raises: Missing, RegistryFailed.
    """
    told: list[str] = []
    for candidate in candidates:
        last: RegistryFailed | None = None
        for source in candidate.sources:
            try:
                with closing(_registry(source, environ)) as registry:
                    return candidate, source, ask(registry, candidate.version)
            except RegistryFailed as error:
                last = error
                told.append(str(error))
        if not isinstance(last, Missing):
            raise RegistryFailed("; ".join(told))
    raise Missing(f"{'; '.join(told)}. Is the name right? Private images need `docker login` or `podman login` here")


def _registry(source: Source, environ: Mapping[str, str]) -> Registry:
    """Raises: RegistryFailed, also where the host's login for it cannot be read: another place may do without."""
    try:
        return Registry(source, credentials.find(source.host, source.repository, environ))
    except (HostUnsupported, OSError) as error:
        raise RegistryFailed(f"{source.host}: {error}") from error


class _Pull:
    """One image on its way into a layout."""

    def __init__(self, job: Job, registry: Registry, say: Say) -> None:
        self._job = job
        self._registry = registry
        self._say = say
        self.layout = Path(job.scratch) / "layout"
        (self.layout / _DOCUMENTS).mkdir(parents=True)
        self._done = 0
        self._total = 0
        self._said_at = 0.0
        self._unlooked = 0

    def manifest(self, top: Answer) -> archive.Document:
        """The manifest for this machine, through an index if there is one, and all of them in the layout."""
        document, answer = _document(top), top
        if "manifests" in document:
            chosen = archive.choose(document)
            answer = self._registry.manifest(_digest(chosen))
            document = _document(answer)
        self._keep(answer.content)
        entry = {"digest": answer.digest, "size": len(answer.content)}
        (self.layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        (self.layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        return document

    def fetch(self, manifest: archive.Document) -> None:
        """Every blob that the manifest lists. Raises: InvalidSpec, RegistryFailed."""
        blobs = {_digest(each): _size(each) for each in [*_config(manifest), *archive.layers(manifest)]}
        self._total = sum(blobs.values())
        if len(blobs) > _MAX_LAYERS:
            raise InvalidSpec(f"it has more than {_MAX_LAYERS} layers", field="image")
        if self._total > self._job.max_bytes:
            raise InvalidSpec(
                f"its {self._total} bytes are more than the {self._job.max_bytes} that one image may have (--max-image)",
                field="image",
            )
        if self._total > self._job.room:
            raise Exhausted(f"its {self._total} bytes find no room beside the images that sandboxes use")
        self.check_disk(self._total)
        for digest, size in blobs.items():
            self._registry.fetch(digest, size, self._place(digest), self._heard)
        self._told()

    def _keep(self, content: bytes) -> None:
        self._place(digest_of(content)).write_bytes(content)

    def _place(self, digest: str) -> Path:
        return self.layout / _DOCUMENTS / digest.removeprefix("sha256:")

    def _heard(self, count: int) -> None:
        self._done += count
        self._unlooked += max(count, 0)
        if self._unlooked >= _LOOK_EVERY_BYTES:
            self._unlooked = 0
            self.check_disk(self._total - self._done)
        if time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._told()

    def _told(self) -> None:
        self._said_at = time.monotonic()
        self._say({"phase": "downloading", "done": self._done, "total": self._total})

    def check_disk(self, size: int) -> None:
        """Raises: OSError, where so many bytes more would be of what is left alone."""
        host = os.statvfs(self._job.scratch)
        if host.f_bavail * host.f_frsize - size < self._job.keep_free or (host.f_files and not host.f_favail):
            raise OSError(errno.ENOSPC, f"there is no room for {size} bytes more of the image")


def _document(answer: Answer) -> archive.Document:
    try:
        document = json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise RegistryFailed(f"the manifest {answer.digest} is not JSON") from error
    if not isinstance(document, dict):
        raise RegistryFailed(f"the manifest {answer.digest} is no object")
    return document


def _config(manifest: archive.Document) -> list[archive.Document]:
    config = manifest.get("config")
    return [config] if isinstance(config, dict) else []


def _digest(descriptor: archive.Document) -> str:
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not archive.DIGEST.fullmatch(digest):
        raise InvalidSpec(f"unsupported digest {str(digest)[:100]!r}", field="image")
    return digest


def _size(descriptor: archive.Document) -> int:
    size = descriptor.get("size")
    if not isinstance(size, int) or size < 0:
        raise InvalidSpec(f"a blob has no size: {str(size)[:100]!r}", field="image")
    return size


if __name__ == "__main__":
    sys.exit(main(os.environ))  # noqa: TID251 - an entry point
