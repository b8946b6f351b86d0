"""Images by name: found here, or pulled by a program of its own (`pull`), one pull for however many wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8e import full_disk
from k8e.errors import DiskFull, Exhausted, SandboxFailed
from k8e.model import GIB, ImageProgress, OwnerId
from k8e.substrate.local.images import pull_program, registries
from k8e.substrate.local.images.pull_job import Candidate, Job
from k8e.substrate.local.images.pulled import PulledImage, PulledImages
from k8e.substrate.local.images.reference import Reference, parse
from k8e.substrate.local.images.shared_work import Heard, OwnerTurns, SharedWork
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["PullSettings", "Pulls"]

_log = logging.getLogger(__name__)

_AGAIN_S = 5.0
_AWAY_S = 60.0
_LOOKUPS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """What the operator says about pulling."""

    registries: tuple[str, ...] = ()
    """Where images may come from, the first for short names; empty is what the host's configuration names."""
    insecure: tuple[str, ...] = ()
    max_image: int = 10 * GIB
    kept: int = 20 * GIB
    timeout_s: float = 900.0
    at_once: int = 2
    per_owner: int = 8
    """How many images may be pulled for one owner, or wait for it."""
    tag_age_s: float = 3600.0
    """How long a tag means what it meant before the registry is asked again."""
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A name, what it may mean, and what is known of it here."""

    question: str
    """All that it may mean, in one text; empty for a digest, which needs no answer."""
    candidates: tuple[Candidate, ...]
    fresh: str
    """The exact name of an image that is here, where nobody has to be asked."""
    known: str
    """The same for what it meant before."""


class Pulls:
    def __init__(
        self,
        settings: PullSettings,
        images: PulledImages,
        directory: Path,
        *,
        keep_free: Callable[[], int],
        used: Callable[[], Collection[str]],
    ) -> None:
        """`used` are the directories of images that sandboxes stand on, `keep_free` what is left alone of the disk."""
        self._settings = settings
        self._images = images
        self._directory = directory
        self._keep_free = keep_free
        self._used = used
        self._work = SharedWork()
        self._turns = OwnerTurns(settings.at_once)
        self._lookups = OwnerTurns(_LOOKUPS_AT_ONCE)
        self._ask_again_at: dict[str, float] = {}
        """When the registry of a name that could not be asked is tried again; until then the image of before is used."""
        self._of_owner: Counter[OwnerId] = Counter()

    async def resolve(self, name: str, owner: OwnerId, heard: Heard) -> str:
        """The name with the digest of an image that is here now.

        Raises: InvalidSpec, HostUnsupported, Exhausted, DiskFull, SandboxFailed.
        """
        asked = await asyncio.to_thread(self._ask, name)
        if asked.fresh:
            return asked.fresh
        if asked.known and time.monotonic() < self._ask_again_at.get(name, 0.0):
            return asked.known
        try:
            return await self._work.run(name, heard, lambda tell: self._renewed(name, asked, owner, tell))
        except (SandboxFailed, DiskFull, Exhausted) as error:
            if not asked.known:
                raise
            self._ask_again_at = {**_future(self._ask_again_at), name: time.monotonic() + _AWAY_S}
            _log.warning("an image cannot be renewed; using that of before", extra={"image": name, "error": str(error)})
            return asked.known

    def _ask(self, name: str) -> _Asked:
        """Blocking: reads the host's configuration."""
        reference = parse(name)
        where = registries.read(self._settings.registries, self._settings.insecure, environ=self._settings.environ)
        meant = where.full_names(reference)
        candidates = tuple(
            Candidate(name=str(each), version=each.version, sources=where.sources(each)) for each in meant
        )
        if reference.digest:
            image = self._images.get(reference.digest)
            here = next((str(each) for each in meant if image and repository_of(each) in image.repositories), "")
            return _Asked("", candidates, here, here)
        question = " ".join(each.name for each in candidates)
        tagged = self._images.tagged(question)
        if tagged is None:
            return _Asked(question, candidates, "", "")
        image, tag = tagged
        known = str(parse(tag.name).pinned(image.digest))
        is_fresh = 0 <= time.time() - tag.asked_at < self._settings.tag_age_s
        return _Asked(question, candidates, known if is_fresh else "", known)

    async def _renewed(self, name: str, asked: _Asked, owner: OwnerId, heard: Heard) -> str:
        with self._counted(owner):
            if asked.known:
                # Mostly it means what it meant: that is found out beside the images that are being pulled.
                async with self._lookups.turn(owner):
                    heard(ImageProgress(phase="resolving"))
                    found = await self._look_up(name, asked, heard)
                if self._images.get(found["digest"]) is not None:
                    return await asyncio.to_thread(self._found, found, asked.question)
            heard(ImageProgress(phase="waiting"))
            async with self._turns.turn(owner):
                heard(ImageProgress(phase="resolving"))
                return await self._pull(name, asked, heard)

    async def _look_up(self, name: str, asked: _Asked, heard: Heard) -> Mapping[str, Any]:
        job = Job(candidates=asked.candidates, only_look=True)
        return await self._run(name, job, heard)

    async def _pull(self, name: str, asked: _Asked, heard: Heard) -> str:
        scratch = self._directory / f"{UNFINISHED}pull-{secrets.token_hex(8)}"
        try:
            job = await asyncio.to_thread(self._job, asked, scratch)
            result = await self._run(name, job, heard)
            return await asyncio.to_thread(self._take, result, asked.question, scratch / "root")
        except OSError as error:
            raise full_disk.explained(error, self._directory) or SandboxFailed(f"pull {name}", error) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _job(self, asked: _Asked, scratch: Path) -> Job:
        scratch.mkdir(mode=0o700)
        return Job(
            candidates=asked.candidates,
            known=self._images.digests,
            scratch=str(scratch),
            max_bytes=self._settings.max_image,
            room=self._images.room(self._settings.kept, self._used()),
            keep_free=self._keep_free(),
        )

    def _take(self, result: Mapping[str, Any], question: str, root: Path) -> str:
        """Raises: Exhausted, when images that are in use leave no room for it."""
        if "env" in result:
            image = PulledImage(digest=result["digest"], bytes=result["bytes"], env=result["env"])
            if not self._images.admit(image, root, self._settings.kept, self._used()):
                raise Exhausted(
                    f"the images that sandboxes use leave no room for {image.bytes} bytes more within "
                    f"{self._settings.kept}: end sessions of other images, or raise --kept-images"
                )
        return self._found(result, question)

    def _found(self, result: Mapping[str, Any], question: str) -> str:
        """The exact name, from now on known."""
        full, digest = parse(result["name"]), str(result["digest"])
        if self._images.get(digest) is None:
            raise SandboxFailed(f"pull {full}", "it was removed meanwhile; try again")
        self._images.found(digest, str(full), repository_of(full), question)
        return str(full.pinned(digest))

    async def _run(self, name: str, job: Job, heard: Heard) -> Mapping[str, Any]:
        settings = self._settings
        return await pull_program.run(name, job, timeout_s=settings.timeout_s, environ=settings.environ, heard=heard)

    @contextlib.contextmanager
    def _counted(self, owner: OwnerId) -> Iterator[None]:
        """Raises: Exhausted: what one owner asks for must not be all that the others wait for."""
        if self._of_owner[owner] >= self._settings.per_owner:
            raise Exhausted(
                f"{self._of_owner[owner]} images are being pulled for you already: wait for one of them",
                retry_after_s=_AGAIN_S,
            )
        self._of_owner[owner] += 1
        try:
            yield
        finally:
            self._of_owner[owner] -= 1
            if not self._of_owner[owner]:
                del self._of_owner[owner]


def repository_of(name: Reference) -> str:
    return f"{name.registry}/{name.repository}"


def _future(times: Mapping[str, float]) -> dict[str, float]:
    return {name: at for name, at in times.items() if at > time.monotonic()}
