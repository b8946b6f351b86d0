"""Warm sandboxes, one shelf per template: taken once, never put back, refilled at once.

A claim on an empty shelf waits for the next sandbox that boots, whoever asked for it, and asks for one more; it
never fails for want of a warm one.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from k8e.engine.boxes import Box
from k8e.engine.demand import Demand, builds_to_start
from k8e.engine.settings import PoolSettings
from k8e.engine.tasks import Tasks
from k8e.errors import K8eError, SandboxFailed
from k8e.model import Death, Template

__all__ = ["Pool", "ShelfStatus"]

_log = logging.getLogger(__name__)

_REFILL_AFTER_S = 0.02
_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0
_FORGOTTEN_RATE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfStatus:
    ready: int
    building: int
    target: int
    warm_claims: int
    cold_claims: int


@dataclass(slots=True)
class _Shelf:
    floor: int
    demand: Demand = field(default_factory=Demand)
    ready: collections.deque[Box] = field(default_factory=collections.deque)
    waiting: collections.deque[asyncio.Future[Box]] = field(default_factory=collections.deque)
    building: int = 0
    warm_claims: int = 0
    cold_claims: int = 0
    surplus_since: float | None = None
    failures: int = 0
    retry_at: float = 0.0

    def is_forgotten(self, now: float) -> bool:
        """Nobody keeps it, waits at it or has asked for it lately."""
        is_idle = not (self.floor or self.ready or self.building or self.waiting)
        return is_idle and self.demand.rate(now) < _FORGOTTEN_RATE


class Pool:
    """`build` boots a box, `prepare` makes it fully ready, `discard` removes it.

    A claim that already waits gets its box as soon as it has booted: what `prepare` would add is worth less than the
    time it takes.
    """

    def __init__(
        self,
        settings: PoolSettings,
        tasks: Tasks,
        *,
        build: Callable[[Template], Coroutine[Any, Any, Box]],
        prepare: Callable[[Box], Coroutine[Any, Any, None]],
        discard: Callable[[Box], Coroutine[Any, Any, None]],
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._build = build
        self._prepare = prepare
        self._discard = discard
        self._shelves: dict[Template, _Shelf] = {}
        self._gate = asyncio.Semaphore(settings.boots_at_once)
        self._boots: set[asyncio.Task[None]] = set()
        self._open = True

    def keep(self, template: Template, *, floor: int) -> None:
        """Hold at least `floor` ready members of this template from now on."""
        self._shelf(template).floor = floor

    def adopt(self, box: Box) -> None:
        """Put back a member that was warm before the server restarted and has never been claimed."""
        self._hand_over(box)

    async def claim(self, template: Template) -> tuple[Box, bool]:
        """A ready box that is now the caller's, and whether it was warm. Raises: what `build` raises."""
        shelf = self._shelf(template)
        shelf.demand.arrived(time.monotonic())
        box = self._pop(shelf)
        if box is not None:
            shelf.warm_claims += 1
            # A boot takes a core for a while; the claim that made room for it should be answered first.
            asyncio.get_running_loop().call_later(_REFILL_AFTER_S, self.refill, template)
            return box, True
        shelf.cold_claims += 1
        waiter: asyncio.Future[Box] = asyncio.get_running_loop().create_future()
        shelf.waiting.append(waiter)
        shelf.retry_at = 0.0
        self.refill(template)
        try:
            return await waiter, False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_over(waiter.result())
            raise

    def refill(self, template: Template) -> None:
        """Start the boots that are missing; called after every change."""
        shelf = self._shelf(template)
        now = time.monotonic()
        if not self._open or (now < shelf.retry_at and not shelf.waiting):
            return
        missing = builds_to_start(
            ready=len(shelf.ready),
            building=shelf.building,
            waiting=sum(not waiter.done() for waiter in shelf.waiting),
            target=self._target(shelf, now),
        )
        for _ in range(missing):
            shelf.building += 1
            boot = self._tasks.start(self._boot(template, shelf), name=f"boot {template.runtime}")
            self._boots.add(boot)
            boot.add_done_callback(self._boots.discard)

    def tend(self) -> None:
        """The slow rhythm: follow falling demand down, and try again after failures."""
        now = time.monotonic()
        for template, shelf in list(self._shelves.items()):
            if shelf.is_forgotten(now):
                # Callers choose templates freely; an empty shelf must not outlive their interest.
                del self._shelves[template]
                continue
            surplus = len(shelf.ready) - self._target(shelf, now)
            if surplus <= 0:
                shelf.surplus_since = None
            elif shelf.surplus_since is None:
                shelf.surplus_since = now
            elif now - shelf.surplus_since > self._settings.keep_surplus_s:
                self._throw_away(shelf, surplus)
            self.refill(template)

    async def close(self) -> list[Box]:
        """Start nothing more, break off what boots, and give up all ready members."""
        self._open = False
        for boot in self._boots:
            boot.cancel()
        if self._boots:
            await asyncio.wait(self._boots)
        boxes = [box for shelf in self._shelves.values() for box in shelf.ready]
        for shelf in self._shelves.values():
            shelf.ready.clear()
        return boxes

    def status(self) -> dict[Template, ShelfStatus]:
        now = time.monotonic()
        return {
            template: ShelfStatus(
                ready=len(shelf.ready),
                building=shelf.building,
                target=self._target(shelf, now),
                warm_claims=shelf.warm_claims,
                cold_claims=shelf.cold_claims,
            )
            for template, shelf in self._shelves.items()
        }

    def _shelf(self, template: Template) -> _Shelf:
        return self._shelves.setdefault(template, _Shelf(floor=0))

    def _target(self, shelf: _Shelf, now: float) -> int:
        return shelf.demand.target(now, low=shelf.floor, high=max(self._settings.max, shelf.floor))

    def _pop(self, shelf: _Shelf) -> Box | None:
        while shelf.ready:
            box = shelf.ready.popleft()
            box.died = None
            if not box.is_dead:
                return box
            self._remove(box)
        return None

    async def _boot(self, template: Template, shelf: _Shelf) -> None:
        try:
            box = await self._booted(template, shelf)
        except K8eError as error:
            shelf.building -= 1
            self._failed(shelf, error)
        except BaseException:
            # A bug or a shutdown: whoever waits must hear of it rather than wait for ever.
            shelf.building -= 1
            self._failed(shelf, SandboxFailed("boot a sandbox", "the server's log says more"))
            raise
        else:
            shelf.building -= 1
            shelf.failures = 0
            self._hand_over(box)

    async def _booted(self, template: Template, shelf: _Shelf) -> Box:
        async with self._gate:
            began = time.monotonic()
            box = await self._build(template)
            if all(waiter.done() for waiter in shelf.waiting):
                await self._prepare(box)
            shelf.demand.booted(time.monotonic() - began)
            return box

    def _hand_over(self, box: Box) -> None:
        if box.is_dead:
            # It died while nobody was there to be told.
            self._member_died(box, Death(detail="it died on its way to the shelf"))
            return
        shelf = self._shelf(box.template)
        while shelf.waiting:
            waiter = shelf.waiting.popleft()
            if not waiter.done():
                waiter.set_result(box)
                return
        box.died = self._member_died
        shelf.ready.append(box)

    def _failed(self, shelf: _Shelf, error: K8eError) -> None:
        shelf.failures += 1
        shelf.retry_at = time.monotonic() + min(_RETRY_FIRST_S * 2**shelf.failures, _RETRY_MAX_S)
        waiter = next((w for w in shelf.waiting if not w.done()), None)
        if waiter is not None:
            shelf.waiting.remove(waiter)
            waiter.set_exception(error)
        elif self._open:
            _log.error("could not boot a warm sandbox", extra={"error": str(error), "failures": shelf.failures})

    def _member_died(self, box: Box, death: Death) -> None:
        _log.info("a warm sandbox died", extra={"sandbox": box.id, "detail": death.detail})
        shelf = self._shelf(box.template)
        if box in shelf.ready:
            shelf.ready.remove(box)
        self._remove(box)
        self.refill(box.template)

    def _throw_away(self, shelf: _Shelf, count: int) -> None:
        for _ in range(count):
            box = shelf.ready.pop()
            box.died = None
            self._remove(box)

    def _remove(self, box: Box) -> None:
        self._tasks.start(self._discard(box), name=f"discard {box.id}")
