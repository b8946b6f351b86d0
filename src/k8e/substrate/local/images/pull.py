"""Pulls one image, as a program of its own: `python -m k8e.substrate.local.images.pull`.

What a registry sends is taken apart here, beside the server: whatever it does to this process, a bound of memory or the
server's clock ends it. The job is one line of JSON on standard input, which stays open for as long as the server lives; every
line of standard output is progress, and the last one the result or the error.
"""

from __future__ import annotations

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
from typing import Any

from k8e.errors import HostUnsupported, InvalidSpec, K8eError
from k8e.substrate.local.images import archive, credentials, layer
from k8e.substrate.local.images.pull_job import Candidate, Job
from k8e.substrate.local.images.registries import Source
from k8e.substrate.local.images.registry import Answer, Missing, Registry, RegistryFailed, digest_of

__all__ = ["main"]

MEMORY_BYTES = 2 * 2**30
_MAX_LAYERS = 512
_SAY_EVERY_S = 0.2
_LOOK_EVERY_BYTES = 64 * 2**20
_DOCUMENTS = "blobs/sha256"


Say = Callable[[Mapping[str, Any]], None]


def main(environ: Mapping[str, str]) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    job = Job.read(sys.stdin.readline())
    threading.Thread(target=_end_with_server, daemon=True).start()
    try:
        _say(_pulled(job, environ, _say))
    except (K8eError, OSError, MemoryError) as error:
        _say({"error": _explained(error), "kind": _kind(error)})
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
        case Missing() | InvalidSpec():
            return "invalid"
        case HostUnsupported():
            return "host"
        case OSError():
            return "disk"
    return "registry"


def _explained(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"it needs more than {MEMORY_BYTES} bytes of memory to be unpacked"
    return str(error).removeprefix("image: ")


def _pulled(job: Job, environ: Mapping[str, str], say: Say) -> dict[str, Any]:
    candidate, source, top = _found(job.candidates, environ)
    result = {"name": candidate.name, "digest": top.digest}
    if top.digest in job.known:
        return result
    with closing(_registry(source, environ)) as registry:
        pull = _Pull(job, registry, say)
        manifest = pull.manifest(top)
        pull.fetch(manifest)
    say({"phase": "unpacking"})
    root = Path(job.scratch) / "root"
    root.mkdir()
    room = layer.Room.of(job.max_bytes)
    variables = archive.unpack(pull.layout, root, room)
    shutil.rmtree(pull.layout)
    return {**result, "env": variables, "bytes": job.max_bytes - room.left}


def _found(candidates: Iterable[Candidate], environ: Mapping[str, str]) -> tuple[Candidate, Source, Answer]:
    """The first place that has the image. Raises: what the most telling of them says."""
    troubles: list[K8eError] = []
    away: set[str] = set()
    for candidate, source in ((each, source) for each in candidates for source in each.sources):
        if source.host in away:
            continue
        try:
            with closing(_registry(source, environ)) as registry:
                return candidate, source, registry.manifest(candidate.version)
        except Missing as error:
            troubles.append(error)
        except RegistryFailed as error:
            troubles.append(error)
            away.add(source.host)
    told = dict.fromkeys(map(str, troubles))
    # One that could not be asked may have it: then nobody can say that it does not exist.
    unasked = [each for each in troubles if not isinstance(each, Missing)]
    if unasked:
        raise RegistryFailed("; ".join(told))
    raise Missing(f"{'; '.join(told)}. Is the name right? Private images need `docker login` or `podman login` here")


def _registry(source: Source, environ: Mapping[str, str]) -> Registry:
    return Registry(source, credentials.find(source.host, source.repository, environ))


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
        self._check_disk()
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
            self._check_disk()
        if time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._told()

    def _told(self) -> None:
        self._said_at = time.monotonic()
        self._say({"phase": "downloading", "done": self._done, "total": self._total})

    def _check_disk(self) -> None:
        host = os.statvfs(self.layout)
        if host.f_bavail * host.f_frsize - (self._total - self._done) < self._job.keep_free:
            raise OSError(errno.ENOSPC, f"there is no room for its {self._total} bytes")


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
        raise InvalidSpec(f"unsupported digest {digest!r}", field="image")
    return digest


def _size(descriptor: archive.Document) -> int:
    size = descriptor.get("size")
    if not isinstance(size, int) or size < 0:
        raise InvalidSpec(f"a blob has no size: {size!r}", field="image")
    return size


if __name__ == "__main__":
    sys.exit(main(os.environ))  # noqa: TID251 - an entry point
