"""Images by name: found here, or pulled by a program of its own (`pull`), one pull for however many wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from k8e.errors import DiskFull, Exhausted, HostUnsupported, InvalidSpec, K8eError, SandboxFailed
from k8e.model import GIB, ImageProgress, OwnerId
from k8e.substrate.local.images import reference, registries
from k8e.substrate.local.images.pull_job import Candidate, Job
from k8e.substrate.local.images.pulled import PulledImage, PulledImages
from k8e.substrate.local.images.reference import Reference
from k8e.substrate.local.images.registries import Registries
from k8e.substrate.local.unfinished import UNFINISHED

__all__ = ["Heard", "PullSettings", "Pulls"]

_log = logging.getLogger(__name__)

_NICENESS = 10
_AGAIN_S = 5.0
_AWAY_S = 60.0
_LINE_BYTES = 256 * 1024
_OTHER_LINES = 20

Heard = Callable[[ImageProgress], None]


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
    """How many callers of one owner may wait for pulls."""
    tag_age_s: float = 3600.0
    """How long a tag means what it meant before the registry is asked again."""
    environ: Mapping[str, str] = field(default_factory=dict)


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
        self._slots = asyncio.Semaphore(settings.at_once)
        self._running: dict[str, _Pull] = {}
        self._ask_again_at: dict[str, float] = {}
        """When the registry of a name that could not be asked is tried again; until then the image of before is used."""
        self._of_owner: Counter[OwnerId] = Counter()

    async def resolve(self, name: str, owner: OwnerId, heard: Heard) -> str:
        """The name with the digest of an image that is here now.

        Raises: InvalidSpec, HostUnsupported, Exhausted, DiskFull, SandboxFailed.
        """
        asked = reference.parse(name)
        allowed = await asyncio.to_thread(self._registries)
        candidates = allowed.full_names(asked)
        if here := self._here(candidates):
            return here
        old = self._last_known(candidates)
        if old and time.monotonic() < self._ask_again_at.get(name, 0.0):
            return old
        try:
            with self._counted(owner):
                return await self._shared(name, tuple(_candidate(each, allowed) for each in candidates), heard)
        except SandboxFailed as error:
            if old:
                self._ask_again_at = {**_future(self._ask_again_at), name: time.monotonic() + _AWAY_S}
                _log.warning("a registry cannot be asked; using the image of before", extra={"error": str(error)})
                return old
            raise

    @contextlib.contextmanager
    def _counted(self, owner: OwnerId) -> Iterator[None]:
        """Raises: Exhausted: one owner's pulls must not be all that the others wait for."""
        if self._of_owner[owner] >= self._settings.per_owner:
            raise Exhausted(
                f"you have {self._of_owner[owner]} pulls of images under way: wait for one of them",
                retry_after_s=_AGAIN_S,
            )
        self._of_owner[owner] += 1
        try:
            yield
        finally:
            self._of_owner[owner] -= 1
            if not self._of_owner[owner]:
                del self._of_owner[owner]

    async def _shared(self, name: str, candidates: tuple[Candidate, ...], heard: Heard) -> str:
        """The first who asks pulls; whoever comes meanwhile waits for the same result."""
        pull = self._running.get(name)
        if pull is not None:
            return await pull.wait(heard)
        pull = self._running[name] = _Pull(heard)
        try:
            result = await self._pull(name, candidates, pull.tell)
        except BaseException as error:
            pull.fail(error)
            raise
        else:
            pull.succeed(result)
            return result
        finally:
            del self._running[name]

    def _registries(self) -> Registries:
        return registries.read(self._settings.registries, self._settings.insecure, environ=self._settings.environ)

    def _here(self, candidates: tuple[Reference, ...]) -> str:
        """The name of an image that is here and fresh enough."""
        for each in candidates:
            if each.digest and self._images.find(each.digest):
                return str(each)
            known = None if each.digest else self._images.tagged(str(each))
            if known is not None and time.time() - known[1] < self._settings.tag_age_s:
                self._images.find(known[0].digest)
                return str(each.pinned(known[0].digest))
        return ""

    def _last_known(self, candidates: tuple[Reference, ...]) -> str:
        for each in candidates:
            known = None if each.digest else self._images.tagged(str(each))
            if known is not None:
                self._images.find(known[0].digest)
                return str(each.pinned(known[0].digest))
        return ""

    async def _pull(self, name: str, candidates: tuple[Candidate, ...], heard: Heard) -> str:
        heard(ImageProgress(phase="waiting"))
        async with self._slots:
            heard(ImageProgress(phase="resolving"))
            scratch = self._directory / f"{UNFINISHED}pull-{secrets.token_hex(8)}"
            await asyncio.to_thread(self._make_room, scratch)
            try:
                job = Job(
                    candidates=candidates,
                    known=self._images.digests,
                    scratch=str(scratch),
                    max_bytes=self._settings.max_image,
                    keep_free=self._keep_free(),
                )
                result = await self._run(name, job, heard)
                return await asyncio.to_thread(self._take, result, scratch / "root")
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _make_room(self, scratch: Path) -> None:
        self._images.evict(self._settings.kept, self._used())
        scratch.mkdir(mode=0o700)

    def _take(self, result: Mapping[str, Any], root: Path) -> str:
        """Raises: Exhausted, when images that are in use leave no room for it."""
        name, digest = str(result["name"]), str(result["digest"])
        if "env" in result:
            self._images.add(PulledImage(digest=digest, bytes=result["bytes"], env=result["env"]), root)
            if self._images.evict(self._settings.kept, self._used()):
                self._images.remove(digest)
                raise Exhausted(
                    f"the images that sandboxes use leave no room for another within {self._settings.kept} bytes: end "
                    "sessions of other images, or raise --kept-images"
                )
        elif self._images.find(digest) is None:
            raise SandboxFailed(f"pull {name}", "it was removed meanwhile; try again")
        full = reference.parse(name)
        if full.tag:
            self._images.tag(digest, str(full))
        return str(full.pinned(digest))

    async def _run(self, name: str, job: Job, heard: Heard) -> Mapping[str, Any]:
        """What the program found. Raises: what it says was wrong."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "k8e.substrate.local.images.pull",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=_LINE_BYTES, env=dict(self._settings.environ), start_new_session=True,
        )  # fmt: skip
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            async with asyncio.timeout(self._settings.timeout_s):
                return await _conversation(process, name, job, heard)
        except TimeoutError:
            raise SandboxFailed(
                f"pull {name}", f"not done in {self._settings.timeout_s:.0f} s (--pull-timeout)"
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class _Pull:
    """A pull that is under way, and those who wait for it."""

    def __init__(self, heard: Heard) -> None:
        self._listeners = [heard]
        self._last: ImageProgress | None = None
        self._result: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(self, heard: Heard) -> str:
        if self._last is not None:
            heard(self._last)
        self._listeners.append(heard)
        try:
            return await asyncio.shield(self._result)
        finally:
            self._listeners.remove(heard)

    def tell(self, progress: ImageProgress) -> None:
        self._last = progress
        for heard in list(self._listeners):
            heard(progress)

    def succeed(self, result: str) -> None:
        self._result.set_result(result)

    def fail(self, error: BaseException) -> None:
        self._result.set_exception(error if isinstance(error, K8eError) else SandboxFailed("pull", repr(error)))
        self._result.exception()  # it may be that nobody waits, and asyncio would complain that nobody asked


def _future(times: Mapping[str, float]) -> dict[str, float]:
    return {name: at for name, at in times.items() if at > time.monotonic()}


def _candidate(name: Reference, allowed: Registries) -> Candidate:
    return Candidate(name=str(name), version=name.version, sources=allowed.sources(name))


async def _conversation(process: asyncio.subprocess.Process, name: str, job: Job, heard: Heard) -> Mapping[str, Any]:
    stdin, stdout = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
    stdin.write(job.text().encode() + b"\n")
    last: Mapping[str, Any] = {}
    said: deque[str] = deque(maxlen=_OTHER_LINES)
    async for line in stdout:
        try:
            last = json.loads(line)
        except ValueError:
            # Whatever else it says is for whoever has to find out why it failed.
            said.append(line.decode("utf-8", "replace"))
            continue
        if "phase" in last:
            heard(ImageProgress(phase=last["phase"], done=last.get("done", 0), total=last.get("total", 0)))
    if "digest" in last:
        return last
    raise _error(name, last, "".join(said), job)


def _error(name: str, last: Mapping[str, Any], log: str, job: Job) -> K8eError:
    text = str(last.get("error", "")) or f"its program ended without a word: {log.strip()[-400:]}"
    match last.get("kind"):
        case "invalid":
            return InvalidSpec(f"cannot pull {name}: {text}", field="image")
        case "host":
            return HostUnsupported(text)
        case "disk":
            return DiskFull(job.scratch, text)
    return SandboxFailed(f"pull {name}", text)
