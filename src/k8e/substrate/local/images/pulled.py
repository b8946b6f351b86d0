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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["PulledImage", "PulledImages", "Tag"]

_PREFIX = "pulled-"


@dataclass(frozen=True, slots=True)
class Tag:
    """What the registries said that a name means, when they were asked."""

    name: str
    """The full name under which the image was found."""
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledImage:
    digest: str
    bytes: int
    """What it takes of the disk, about, with its virtual environment."""
    env: Mapping[str, str] = field(default_factory=dict)
    repositories: tuple[str, ...] = ()
    """Where it was found: `host/name`. Under no other name is it given to anybody."""
    tags: Mapping[str, Tag] = field(default_factory=dict)
    """By the names that were asked for, all that each could have meant: another list of registries is another question."""

    @property
    def directory(self) -> str:
        return _PREFIX + self.digest.removeprefix("sha256:")[:32]


class PulledImages:
    """Blocking, though never for long but where it says so; safe from several threads."""

    def __init__(self, directory: Path, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._now = now
        self._lock = threading.Lock()
        self._by_digest = {image.digest: image for image in _load(directory)}
        self._leases: Counter[str] = Counter()

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self._by_digest)

    def path(self, image: PulledImage) -> Path:
        return self._directory / image.directory

    def get(self, digest: str) -> PulledImage | None:
        return self._by_digest.get(digest)

    def tagged(self, question: str) -> tuple[PulledImage, Tag] | None:
        """What a name last meant."""
        with self._lock:
            known = [(image, image.tags[question]) for image in self._by_digest.values() if question in image.tags]
        return max(known, key=lambda each: each[1].asked_at, default=None)

    @contextlib.contextmanager
    def lease(self, digest: str) -> Iterator[None]:
        """Keep it while a sandbox is made of it, which is not written down yet."""
        with self._lock:
            self._leases[digest] += 1
            if (image := self._by_digest.get(digest)) is not None:
                self._touch(image)
        try:
            yield
        finally:
            with self._lock:
                self._leases[digest] -= 1
                if not self._leases[digest]:
                    del self._leases[digest]

    def room(self, limit: int, used: Collection[str]) -> int:
        """How large one more image may be: what is left of `limit`, and what could be removed for it."""
        with self._lock:
            return limit - sum(image.bytes for image in self._by_digest.values() if self._is_used(image, used))

    def admit(self, image: PulledImage, root: Path, limit: int, used: Collection[str]) -> bool:
        """Take over the directory `root`, and remove the longest unused images until all have room in `limit`.

        `used` are directories of images that sandboxes stand on. False, and nothing has changed, where there is no room.
        Takes its time to remove.
        """
        with self._lock:
            if image.digest in self._by_digest:
                return True
            going = self._going(image.bytes - limit, used)
            if going is None:
                return False
            removed = [self._forget(each) for each in going]
            with contextlib.suppress(FileNotFoundError):
                # One whose file was lost; a sandbox may stand on it, so it stays until the next start.
                self.path(image).rename(self._unfinished())
            root.chmod(0o755)
            self._touch_path(root)
            self._write(image)
            root.rename(self.path(image))
            self._by_digest[image.digest] = image
        for path in (each for paths in removed for each in paths):
            shutil.rmtree(path, ignore_errors=True)
        return True

    def found(self, digest: str, name: str, repository: str, question: str) -> None:
        """A registry has just said that what was asked means this image."""
        with self._lock:
            for image in list(self._by_digest.values()):
                if image.digest == digest:
                    tags = {**image.tags, question: Tag(name, self._now())} if question else image.tags
                    places = tuple(dict.fromkeys([*image.repositories, repository]))
                    self._change(replace(image, tags=tags, repositories=places))
                elif question in image.tags:
                    rest = {asked: tag for asked, tag in image.tags.items() if asked != question}
                    self._change(replace(image, tags=rest))

    def grow(self, directory: str, size: int) -> None:
        """What belongs to an image has become larger."""
        with self._lock:
            for image in list(self._by_digest.values()):
                if image.directory == directory:
                    self._change(replace(image, bytes=image.bytes + size))

    def _going(self, too_much: int, used: Collection[str]) -> list[PulledImage] | None:
        """What is removed so that all are smaller by `too_much` than nothing; None where that cannot be."""
        too_much += sum(image.bytes for image in self._by_digest.values())
        going: list[PulledImage] = []
        for image in sorted(self._by_digest.values(), key=self._used_at):
            if too_much <= 0:
                break
            if not self._is_used(image, used):
                going.append(image)
                too_much -= image.bytes
        return None if too_much > 0 else going

    def _is_used(self, image: PulledImage, used: Collection[str]) -> bool:
        return image.directory in used or image.digest in self._leases

    def _used_at(self, image: PulledImage) -> float:
        try:
            return self.path(image).stat().st_mtime
        except OSError:
            return 0.0

    def _touch(self, image: PulledImage) -> None:
        with contextlib.suppress(OSError):
            self._touch_path(self.path(image))

    def _touch_path(self, path: Path) -> None:
        os.utime(path, (self._now(), self._now()))

    def _forget(self, image: PulledImage) -> list[Path]:
        """Nobody finds it any more; what is left of it is for the caller to remove, which takes long."""
        del self._by_digest[image.digest]
        left = []
        for path in (self.path(image), *self._directory.glob(f"venv-{image.directory}.*")):
            with contextlib.suppress(FileNotFoundError):
                left.append(path.rename(self._unfinished()))
        self._record(image).unlink(missing_ok=True)
        return left

    def _record(self, image: PulledImage) -> Path:
        return self._directory / f"{image.directory}.json"

    def _unfinished(self) -> Path:
        return self._directory / f"{UNFINISHED}{secrets.token_hex(8)}"

    def _change(self, image: PulledImage) -> None:
        self._by_digest[image.digest] = image
        self._write(image)

    def _write(self, image: PulledImage) -> None:
        partial = self._unfinished()
        partial.write_text(json.dumps(asdict(image)), encoding="utf-8")
        partial.replace(self._record(image))


def _load(directory: Path) -> Iterator[PulledImage]:
    for path in directory.glob(f"{_PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            image = _read(path.read_text(encoding="utf-8"))
            if (directory / image.directory).is_dir():
                yield image
            else:
                path.unlink()


def _read(text: str) -> PulledImage:
    fields = json.loads(text)
    tags = {question: Tag(**tag) for question, tag in fields["tags"].items()}
    return PulledImage(**{**fields, "tags": tags, "repositories": tuple(fields["repositories"])})
