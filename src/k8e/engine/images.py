"""Images before they are needed: pulled because somebody asks, and kept warm because most sessions have them.

A pull is a task of the engine's, and goes on when whoever asked has left: the next to ask finds it done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from k8e.engine.pool import Pool
from k8e.engine.substrate import Substrate
from k8e.engine.tasks import Tasks, outcome_of
from k8e.errors import SandboxFailed
from k8e.model import ImageProgress, OwnerId, Template

__all__ = ["Images"]

_log = logging.getLogger(__name__)

_AGAIN_S = 1.0
_AGAIN_MOST_S = 60.0
_LOOK_AGAIN_S = 600.0
"""How often the default image's tag is looked up; the registry is asked when what it said is old."""
_NOBODY = OwnerId("")


class Images:
    def __init__(self, substrate: Substrate, tasks: Tasks) -> None:
        self._substrate = substrate
        self._tasks = tasks

    async def pull(self, owner: OwnerId, template: Template) -> AsyncIterator[ImageProgress]:
        """How far it is, whenever that has changed; the last one names the image. Raises: what `prepare` raises."""
        progress = _LatestProgress()
        name = f"pull {template.image}"
        task = self._tasks.start(outcome_of(self._substrate.prepare(template, owner, progress.hear)), name=name)
        task.add_done_callback(lambda _task: progress.changed.set())
        told: ImageProgress | None = None
        while not task.done():
            await progress.changed.wait()
            progress.changed.clear()
            if progress.latest is not None and progress.latest is not told and not task.done():
                told = progress.latest
                yield told
        outcome = None if task.cancelled() else task.result()
        if isinstance(outcome, Template):
            yield ImageProgress(phase="ready", image=outcome.image)
        else:
            raise outcome or SandboxFailed(name, "see the server's log")

    async def keep_warm(self, asked: Template, pool: Pool, *, floor: int) -> None:
        """Keep sandboxes of this template ready; where its image is a tag, of what that means by now."""
        kept: Template | None = None
        pause_s = _AGAIN_S
        while True:
            try:
                template = await self._substrate.prepare(asked, _NOBODY, lambda _progress: None)
            except Exception as error:  # noqa: BLE001 - whatever it was, the pool is to be filled when it is over
                _log.warning("cannot prepare the default image", extra={"image": asked.image, "error": str(error)})
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_MOST_S)
                continue
            if kept is not None and kept != template:
                pool.keep(kept, floor=0)
            pool.keep(template, floor=floor)
            pool.refill(template)
            if template == asked:
                return
            kept, pause_s = template, _AGAIN_S
            await asyncio.sleep(_LOOK_AGAIN_S)


class _LatestProgress:
    """The latest progress: a slow reader misses what came between."""

    def __init__(self) -> None:
        self.latest: ImageProgress | None = None
        self.changed = asyncio.Event()

    def hear(self, progress: ImageProgress) -> None:
        self.latest = progress
        self.changed.set()
