"""The images that came from registries: each a directory by its digest and a small file that says what it is.

The file is there before the directory, which appears by rename: what is there is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["PulledImage", "PulledImages"]

_PREFIX = "pulled-"
_IN_USE_S = 600.0
"""How long an image counts as used after somebody asked for it: a sandbox that is being built is not written down yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    digest: str
    bytes: int
    """What it takes of the disk, about."""
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, float] = field(default_factory=dict)
    """Full names that meant this image, and when the registry last said so."""

    @property
    def directory(self) -> str:
        return _PREFIX + self.digest.removeprefix("sha256:")[:32]


class PulledImages:
    """Blocking; safe from several threads."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._now = now
        self._lock = threading.Lock()
        self._by_digest = {image.digest: image for image in _load(directory)}

    def find(self, digest: str) -> PulledImage | None:
        """The image, which from now on counts as used."""
        with self._lock:
            image = self._by_digest.get(digest)
            if image is not None:
                with contextlib.suppress(OSError):
                    os.utime(self.path(image), (self._now(), self._now()))
            return image

    def tagged(self, name: str) -> tuple[PulledImage, float] | None:
        """What a full name last meant, and when the registry was asked."""
        with self._lock:
            known = [(image, image.tags[name]) for image in self._by_digest.values() if name in image.tags]
        return max(known, key=lambda each: each[1], default=None)

    def path(self, image: PulledImage) -> Path:
        return self._directory / image.directory

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self._by_digest)

    def add(self, image: PulledImage, root: Path) -> None:
        """Take over the directory `root`, which lies on the same file system."""
        with self._lock:
            if image.digest not in self._by_digest:
                self._write(image)
                root.chmod(0o755)
                root.rename(self.path(image))
                self._by_digest[image.digest] = image

    def tag(self, digest: str, name: str) -> None:
        """The registry has just said that the name means this image."""
        with self._lock:
            for image in list(self._by_digest.values()):
                if image.digest == digest:
                    self._write(replace(image, tags={**image.tags, name: self._now()}))
                elif name in image.tags:
                    self._write(replace(image, tags={tag: at for tag, at in image.tags.items() if tag != name}))

    def evict(self, limit: int, used: Collection[str]) -> int:
        """Remove the longest unused until all take no more than `limit`; `used` are directories of living sandboxes.

        Returns: by how much they are still too large.
        """
        with self._lock:
            total = sum(image.bytes for image in self._by_digest.values())
            for image in sorted(self._by_digest.values(), key=self._used_at):
                if total <= limit:
                    break
                if image.directory not in used and self._now() - self._used_at(image) > _IN_USE_S:
                    self._remove(image)
                    total -= image.bytes
            return max(total - limit, 0)

    def remove(self, digest: str) -> None:
        """One that nobody has used."""
        with self._lock:
            self._remove(self._by_digest[digest])

    def _used_at(self, image: PulledImage) -> float:
        try:
            return self.path(image).stat().st_mtime
        except OSError:
            return 0.0

    def _remove(self, image: PulledImage) -> None:
        """Its name goes first: nobody finds half an image."""
        del self._by_digest[image.digest]
        for path in (self.path(image), *self._directory.glob(f"venv-{image.directory}.*")):
            gone = self._directory / f"{UNFINISHED}{secrets.token_hex(8)}"
            with contextlib.suppress(FileNotFoundError):
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
        self._record(image).unlink(missing_ok=True)

    def _record(self, image: PulledImage) -> Path:
        return self._directory / f"{image.directory}.json"

    def _write(self, image: PulledImage) -> None:
        if image.digest in self._by_digest:
            self._by_digest[image.digest] = image
        partial = self._directory / f"{UNFINISHED}{secrets.token_hex(8)}"
        partial.write_text(json.dumps(asdict(image)), encoding="utf-8")
        partial.replace(self._record(image))


def _load(directory: Path) -> Iterator[PulledImage]:
    for path in directory.glob(f"{_PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            image = PulledImage(**json.loads(path.read_text(encoding="utf-8")))
            if (directory / image.directory).is_dir():
                yield image
            else:
                path.unlink()
