"""Images before they are needed: pulled because somebody asks.

A pull is a task of the engine's, and goes on when whoever asked has left: the next to ask finds it done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from k8e.engine.substrate import Substrate
from k8e.errors import SandboxFailed
from k8e.model import ImageProgress, OwnerId, Template
from k8e.tasks import Tasks, outcome_of

__all__ = ["Images"]


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


class _LatestProgress:
    """The latest progress: a slow reader misses what came between."""

    def __init__(self) -> None:
        self.latest: ImageProgress | None = None
        self.changed = asyncio.Event()

    def hear(self, progress: ImageProgress) -> None:
        self.latest = progress
        self.changed.set()
