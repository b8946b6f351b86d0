"""Sandboxes that no session holds: made, kept warm, and removed.

Each is written down before it is made and until it is gone, so the next start knows what a crash has left.
"""

from __future__ import annotations

import asyncio
import time

from k8e.engine import ceilings, lists
from k8e.engine.boxes import Box
from k8e.engine.ids import new_id
from k8e.engine.pool import Pool
from k8e.engine.settings import EngineSettings
from k8e.engine.store import Change, Store
from k8e.engine.substrate import Substrate
from k8e.engine.tasks import Tasks
from k8e.lifecycle import Phase
from k8e.model import Claim, SandboxId, Template

__all__ = ["Sandboxes", "entered", "forgotten"]


def entered(sandbox: SandboxId, phase: Phase) -> Change:
    return Change("UPDATE sandboxes SET phase=? WHERE id=?", (phase, sandbox))


def forgotten(sandbox: SandboxId) -> Change:
    return Change("DELETE FROM sandboxes WHERE id=?", (sandbox,))


class Sandboxes:
    """What it hands out is never taken back: a claimed sandbox is used once."""

    def __init__(self, settings: EngineSettings, store: Store, substrate: Substrate, tasks: Tasks) -> None:
        self._settings = settings
        self._store = store
        self._substrate = substrate
        self._tasks = tasks
        self.pool = Pool(settings.pool, tasks, build=self._build, prepare=self._prepare, discard=self.discard)

    def known(self, sandbox: SandboxId, template: Template) -> Box:
        """One that is there, or is about to be."""
        return Box(sandbox, template, self._substrate, self._tasks)

    def default_claim(self) -> Claim:
        """What warm sandboxes are given in advance, so that a plain claim has nothing left to set."""
        limits = self._settings.limits
        policy = lists.default_policy(limits, self._settings.egress)
        return Claim(cpus=limits.cpus, processes=limits.processes, egress=policy)

    async def discard(self, box: Box, *also: Change) -> None:
        """Remove it, and then what was written down of it."""
        await box.destroy()
        await self._store.commit(forgotten(box.id), *also)

    def begin_to_discard(self, box: Box, *also: Change) -> asyncio.Task[None]:
        """For whoever may be cancelled before it is done."""
        return self._tasks.start(self.discard(box, *also), name=f"discard {box.id}")

    async def _build(self, template: Template) -> Box:
        # When it is about to be made, and not only when it was asked for: many may have been asked for at once.
        ceilings.check_memory(self._substrate.capacity(), self._settings.reserve_memory)
        box = self.known(SandboxId(new_id("sb")), template)
        await self._store.commit(_inserted(box))
        try:
            await self._substrate.create(box.id, template)
            await box.connect()
        except BaseException:
            self.begin_to_discard(box)
            raise
        return box

    async def _prepare(self, box: Box) -> None:
        try:
            await box.prepare(self.default_claim())
            await self._store.commit(entered(box.id, Phase.WARM))
        except BaseException:
            self.begin_to_discard(box)
            raise


def _inserted(box: Box) -> Change:
    made_of = box.template
    return Change(
        "INSERT INTO sandboxes VALUES (?,?,?,?,?,?,?)",
        (
            box.id,
            made_of.runtime,
            made_of.image,
            made_of.memory_bytes,
            made_of.disk_bytes,
            Phase.CREATING,
            time.time(),
        ),
    )
