"""Warm sandboxes, one pool per template: taken once, never put back, refilled at once.

A claim on an empty pool waits for the next sandbox that boots, whoever asked for it, and asks for one more; it never
fails for want of a warm one.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from k8e.engine.substrate import PoolStatus
from k8e.errors import K8eError, SandboxFailed
from k8e.model import Claim, Death, SandboxId, Template
from k8e.substrate.demand import Demand, builds_to_start
from k8e.tasks import Tasks
from k8e.wire.aio import Credentials, Link

__all__ = ["LiveSandbox", "PoolSettings", "WarmPools"]

_log = logging.getLogger(__name__)

_REFILL_AFTER_S = 0.02
_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0
_FORGOTTEN_RATE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    min: int = 2
    """Ready sandboxes of the default template that are always kept: the next claim is warm, and the one after it."""
    max: int = 16
    """Upper bound per template: 16 idle gVisor sandboxes cost about 1 GiB."""
    boots_at_once: int = 2
    """Sandboxes booted side by side; more than the cores only makes each of them slower."""
    keep_surplus_s: float = 60.0
    """How long members beyond the target wait before they are removed, so that a short lull costs nothing."""


@dataclass(slots=True, eq=False)
class LiveSandbox:
    """One that has booted, in a pool or claimed."""

    id: SandboxId
    credentials: Credentials
    claim: Claim | None = None
    """What it was last given; None when that is not known."""
    link: Link | None = None
    """The newest connection to its agent; it may be lost."""
    superseded: str = ""
    """Why it is not ours any more, in its agent's eyes; it is not dialled again."""
    dialing: asyncio.Lock = field(default_factory=asyncio.Lock)
    death: Death | None = None
    doom: Death | None = None
    """Why it is being removed: the cause that is told whoever sees its end first."""
    watches: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass(slots=True)
class _Pool:
    floor: int
    demand: Demand = field(default_factory=Demand)
    ready: collections.deque[LiveSandbox] = field(default_factory=collections.deque)
    waiting: collections.deque[asyncio.Future[LiveSandbox]] = field(default_factory=collections.deque)
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


class WarmPools:
    """`build` boots a sandbox, `prepare` makes it fully ready, `discard` removes it.

    A claim that already waits gets its sandbox as soon as it has booted: what `prepare` would add is worth less than the
    time it takes.
    """

    def __init__(
        self,
        settings: PoolSettings,
        tasks: Tasks,
        *,
        build: Callable[[Template], Coroutine[Any, Any, LiveSandbox]],
        prepare: Callable[[Template, LiveSandbox], Coroutine[Any, Any, None]],
        discard: Callable[[LiveSandbox], Coroutine[Any, Any, None]],
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._build = build
        self._prepare = prepare
        self._discard = discard
        self._pools: dict[Template, _Pool] = {}
        self._gate = asyncio.Semaphore(settings.boots_at_once)
        self._boots: set[asyncio.Task[None]] = set()
        self._open = True

    def keep(self, template: Template, *, floor: int) -> None:
        """Hold at least `floor` ready members of this template from now on."""
        self._pool(template).floor = floor

    def adopt(self, template: Template, member: LiveSandbox) -> None:
        """Put back a member that was warm before the server restarted and has never been claimed."""
        self._hand_over(template, member)

    def died(self, sandbox: LiveSandbox) -> bool:
        """Let go of a ready member that is dead; False when it is none."""
        for template, pool in self._pools.items():
            if sandbox in pool.ready:
                pool.ready.remove(sandbox)
                self._lose(template, sandbox)
                return True
        return False

    async def claim(self, template: Template) -> tuple[LiveSandbox, bool]:
        """A ready sandbox that is now the caller's, and whether it was warm. Raises: what `build` raises."""
        pool = self._pool(template)
        pool.demand.arrived(time.monotonic())
        member = self._pop(pool)
        if member is not None:
            pool.warm_claims += 1
            # A boot takes a core for a while; the claim that made room for it should be answered first.
            asyncio.get_running_loop().call_later(_REFILL_AFTER_S, self.refill, template)
            return member, True
        pool.cold_claims += 1
        waiter: asyncio.Future[LiveSandbox] = asyncio.get_running_loop().create_future()
        pool.waiting.append(waiter)
        pool.retry_at = 0.0
        self.refill(template)
        try:
            return await waiter, False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_over(template, waiter.result())
            raise

    def refill(self, template: Template) -> None:
        """Start the boots that are missing; called after every change."""
        pool = self._pool(template)
        now = time.monotonic()
        if not self._open or (now < pool.retry_at and not pool.waiting):
            return
        missing = builds_to_start(
            ready=len(pool.ready),
            building=pool.building,
            waiting=sum(not waiter.done() for waiter in pool.waiting),
            target=self._target(pool, now),
        )
        for _ in range(missing):
            pool.building += 1
            boot = self._tasks.start(self._boot(template, pool), name=f"boot {template.runtime}")
            self._boots.add(boot)
            boot.add_done_callback(self._boots.discard)

    def tend(self) -> None:
        """The slow rhythm: follow falling demand down, and try again after failures."""
        now = time.monotonic()
        for template, pool in list(self._pools.items()):
            if pool.is_forgotten(now):
                # Callers choose templates freely; an empty pool must not outlive their interest.
                del self._pools[template]
                continue
            surplus = len(pool.ready) - self._target(pool, now)
            if surplus <= 0:
                pool.surplus_since = None
            elif pool.surplus_since is None:
                pool.surplus_since = now
            elif now - pool.surplus_since > self._settings.keep_surplus_s:
                self._throw_away(pool, surplus)
            self.refill(template)

    async def close(self) -> list[LiveSandbox]:
        """Start nothing more, break off what boots, and give up all ready members."""
        self._open = False
        for boot in self._boots:
            boot.cancel()
        if self._boots:
            await asyncio.wait(self._boots)
        members = [member for pool in self._pools.values() for member in pool.ready]
        for pool in self._pools.values():
            pool.ready.clear()
        return members

    def status(self) -> dict[Template, PoolStatus]:
        now = time.monotonic()
        return {
            template: PoolStatus(
                ready=len(pool.ready),
                building=pool.building,
                target=self._target(pool, now),
                warm_claims=pool.warm_claims,
                cold_claims=pool.cold_claims,
            )
            for template, pool in self._pools.items()
        }

    def _pool(self, template: Template) -> _Pool:
        return self._pools.setdefault(template, _Pool(floor=0))

    def _target(self, pool: _Pool, now: float) -> int:
        return pool.demand.target(now, low=pool.floor, high=max(self._settings.max, pool.floor))

    def _pop(self, pool: _Pool) -> LiveSandbox | None:
        while pool.ready:
            member = pool.ready.popleft()
            if member.death is None:
                return member
            self._remove(member)
        return None

    async def _boot(self, template: Template, pool: _Pool) -> None:
        try:
            member = await self._booted(template, pool)
        except K8eError as error:
            pool.building -= 1
            self._failed(pool, error)
        except BaseException:
            # A bug or a shutdown: whoever waits must hear of it rather than wait for ever.
            pool.building -= 1
            self._failed(pool, SandboxFailed("boot a sandbox", "the server's log says more"))
            raise
        else:
            pool.building -= 1
            pool.failures = 0
            self._hand_over(template, member)

    async def _booted(self, template: Template, pool: _Pool) -> LiveSandbox:
        async with self._gate:
            began = time.monotonic()
            member = await self._build(template)
            if all(waiter.done() for waiter in pool.waiting):
                await self._prepare(template, member)
            pool.demand.booted(time.monotonic() - began)
            return member

    def _hand_over(self, template: Template, member: LiveSandbox) -> None:
        if member.death is not None:
            # It died on its way here, where nobody was told.
            self._lose(template, member)
            return
        pool = self._pool(template)
        while pool.waiting:
            waiter = pool.waiting.popleft()
            if not waiter.done():
                waiter.set_result(member)
                return
        pool.ready.append(member)

    def _failed(self, pool: _Pool, error: K8eError) -> None:
        pool.failures += 1
        pool.retry_at = time.monotonic() + min(_RETRY_FIRST_S * 2**pool.failures, _RETRY_MAX_S)
        waiter = next((w for w in pool.waiting if not w.done()), None)
        if waiter is not None:
            pool.waiting.remove(waiter)
            waiter.set_exception(error)
        elif self._open:
            _log.error("could not boot a warm sandbox", extra={"error": str(error), "failures": pool.failures})

    def _lose(self, template: Template, member: LiveSandbox) -> None:
        detail = member.death.detail if member.death is not None else ""
        _log.info("a warm sandbox died", extra={"sandbox": member.id, "detail": detail})
        self._remove(member)
        self.refill(template)

    def _throw_away(self, pool: _Pool, count: int) -> None:
        for _ in range(count):
            self._remove(pool.ready.pop())

    def _remove(self, member: LiveSandbox) -> None:
        self._tasks.start(self._discard(member), name=f"discard {member.id}")
