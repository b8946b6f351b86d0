"""A substrate of one machine: its warm pools, the connections to its agents, and the watch over its sandboxes.

The machine makes and removes single sandboxes; everything that spans their lives is here. A sandbox is watched from
its boot to its release. An error of the machine is told as "out of touch" and tried again, ever later.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from k8e import full_disk
from k8e.engine.substrate import Alive, Capabilities, Change, Claimed, Dead, Held, OutOfMemory, OutOfTouch, PoolStatus
from k8e.errors import K8eError, SandboxFailed
from k8e.model import (
    Capacity,
    Claim,
    Death,
    Decision,
    EgressPolicy,
    Grant,
    ImageProgress,
    OwnerId,
    SandboxId,
    Template,
    Usage,
    WorkspaceId,
)
from k8e.random_ids import new_id
from k8e.substrate.machine import Machine
from k8e.substrate.owners import LEASE_S, SandboxOwners
from k8e.substrate.pool import LiveSandbox, PoolSettings, WarmPools
from k8e.tasks import Tasks
from k8e.wire.aio import DialRefused, Link, LinkLost, ProtocolError, RemoteError

__all__ = ["MachineSubstrate"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_CLAIM_TRIES: Final = 3
_DIALLED_AT_ONCE: Final = 64
"""Sandboxes that are dialled at a time after a restart; one that does not answer takes some ten seconds."""
_READY_TIMEOUT_S: Final = 30.0
_OOM_ANSWER_TIMEOUT_S: Final = 5.0
_TEND_EVERY_S: Final = 1.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_MOST_S: Final = 30.0
_STEADY_S: Final = 1.0
_IMAGE_RETRY_FIRST_S: Final = 1.0
_IMAGE_RETRY_MOST_S: Final = 60.0
_LOOK_AGAIN_S: Final = 600.0
"""How often a tag is looked up that sandboxes are kept warm of; the registry is asked when what it said is old."""
_MAX_PID: Final = 2**31
_NOBODY: Final = OwnerId("")


class MachineSubstrate:
    """Implements `k8e.engine.substrate.Substrate`."""

    def __init__(self, machine: Machine, pool: PoolSettings | None = None, *, lease_s: float = LEASE_S) -> None:
        self.machine = machine
        self._settings = pool or PoolSettings()
        self._lease_s = lease_s
        self._live: dict[SandboxId, LiveSandbox] = {}
        """All that have booted, in a pool or claimed."""
        self._claimed: set[SandboxId] = set()
        """Those whose changes are told."""
        self._booting: set[SandboxId] = set()
        self._untold: collections.deque[Change] = collections.deque()
        self._changed = asyncio.Event()
        self._has_begun = False

    # --- its own life ----------------------------------------------------------------------------------------------

    async def begin(self, tasks: Tasks, *, gateway: str, usual: Claim, check_room: Callable[[], None]) -> None:
        self._tasks = tasks
        with self._substrate_errors():
            self._owners = await asyncio.to_thread(
                SandboxOwners, self.machine.owners_dir, gateway, lease_s=self._lease_s
            )
        self._usual = usual
        self._check_room = check_room
        self._pools = WarmPools(
            self._settings,
            tasks,
            build=self._build,
            prepare=self._prepare,
            discard=lambda member: self.release(member.id),
        )
        self._has_begun = True
        # First of all: those that lived on without us may be filling the disk.
        tasks.start(self.machine.tend(), name="machine")
        at_once = asyncio.Semaphore(_DIALLED_AT_ONCE)
        with self._substrate_errors():
            warm = await self.machine.warm()
        taken = {sandbox: await self._taken(sandbox) for sandbox in await self.machine.survivors()}
        async with asyncio.TaskGroup() as group:
            for sandbox, live in taken.items():
                if live is not None and sandbox in warm:
                    group.create_task(self._restock(live, warm[sandbox], at_once), name=f"restock {sandbox}")
                elif live is not None:
                    self._claimed.add(sandbox)
                elif sandbox in warm:
                    group.create_task(self._try_release(sandbox), name=f"remove {sandbox}")
        tasks.repeat(self._tend_pools, every_s=_TEND_EVERY_S, name="warm pools")
        tasks.repeat(self._keep_lease, every_s=self._owners.renew_every_s, name="lease")

    async def _taken(self, sandbox: SandboxId) -> LiveSandbox | None:
        """Ours from now on, if nobody else holds it and it lives. Raises: SandboxFailed; a guess could cost a session."""
        with self._substrate_errors():
            credentials = await asyncio.to_thread(self._owners.take, sandbox)
            if credentials is None or not self.machine.alive(sandbox):
                return None
        live = LiveSandbox(sandbox, credentials)
        self._watch(live)
        return live

    async def _restock(self, member: LiveSandbox, template: Template, at_once: asyncio.Semaphore) -> None:
        """Back to its pool, with what most sessions are given by now; unless it does not answer."""
        try:
            async with at_once:
                await self._configure(member, self._usual)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and a start has others to take back
            _log.warning("cannot use a warm sandbox", extra={"sandbox": member.id, "error": repr(error)})
            await self._try_release(member.id)
        else:
            self._pools.adopt(template, member)

    async def _try_release(self, sandbox: SandboxId) -> None:
        try:
            await self.release(sandbox)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            # It is tried again when the engine finds that nobody has it.
            _log.warning("cannot remove a sandbox", extra={"sandbox": sandbox, "error": str(error) or repr(error)})

    async def _keep_lease(self) -> None:
        """Say that we live, and remove what those have left who have not said so for too long."""
        self._owners.renew()
        for sandbox in self._owners.known() - self._live.keys() - self._booting:
            await self._try_release(sandbox)

    async def _tend_pools(self) -> None:
        self._pools.tend()

    async def clear(self) -> None:
        for member in await self._pools.close():
            await self.release(member.id)
        for sandbox in await self.machine.survivors() | self._owners.known():
            await self.release(sandbox)

    async def close(self) -> None:
        if not self._has_begun:
            return
        await self._pools.close()
        for live in tuple(self._live.values()):
            await self._hang_up(live)
        self._owners.close()

    # --- what there is ---------------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        return await self.machine.capabilities()

    def capacity(self) -> Capacity:
        return self.machine.capacity()

    async def prepare(self, template: Template, owner: OwnerId, heard: Callable[[ImageProgress], None]) -> Template:
        return await self.machine.prepare(template, owner, heard)

    async def usage(self, sandboxes: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        return await self.machine.usage(sandboxes)

    async def mine(self) -> Mapping[SandboxId, Held]:
        found = await self.machine.survivors() | self._owners.known()
        warm = (self._live.keys() - self._claimed) | self._booting
        with self._substrate_errors():
            return {sandbox: self._held(sandbox) for sandbox in found - warm if self._owners.may_remove(sandbox)}

    async def elsewhere(self) -> frozenset[SandboxId]:
        with self._substrate_errors():
            return frozenset(each for each in self._owners.known() if not self._owners.may_remove(each))

    def _held(self, sandbox: SandboxId) -> Held:
        live = self._live.get(sandbox)
        if live is None:
            return Held(epoch=0, alive=False)
        return Held(epoch=live.credentials.epoch, alive=live.death is None and self.machine.alive(sandbox))

    # --- warm pools ------------------------------------------------------------------------------------------------

    def keep_warm(self, template: Template) -> None:
        self._tasks.start(self._keep_warm(template), name="keep warm")

    async def _keep_warm(self, asked: Template) -> None:
        """Where its image is a tag, of what that means by now."""
        kept: Template | None = None
        pause_s = _IMAGE_RETRY_FIRST_S
        while True:
            try:
                template = await self.machine.prepare(asked, _NOBODY, lambda _progress: None)
            except Exception as error:  # noqa: BLE001 - whatever it was, the pool is to be filled when it is over
                _log.warning("cannot prepare the default image", extra={"image": asked.image, "error": str(error)})
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _IMAGE_RETRY_MOST_S)
                continue
            if kept is not None and kept != template:
                self._pools.keep(kept, floor=0)
            self._pools.keep(template, floor=self._settings.min)
            self._pools.refill(template)
            if template == asked:
                return
            kept, pause_s = template, _IMAGE_RETRY_FIRST_S
            await asyncio.sleep(_LOOK_AGAIN_S)

    def pool(self) -> Mapping[Template, PoolStatus]:
        return self._pools.status()

    async def _build(self, template: Template) -> LiveSandbox:
        # When it is about to be made, and not only when it was asked for: many may have been asked for at once.
        self._check_room()
        sandbox = SandboxId(new_id("sb"))
        self._booting.add(sandbox)
        try:
            with self._substrate_errors():
                credentials = self._owners.make(sandbox)
            try:
                await self.machine.create(sandbox, template, credentials)
            except BaseException:
                # Its file goes with its last trace; where that fails, the round that keeps the lease tries again.
                self._tasks.start(self._try_release(sandbox), name=f"remove {sandbox}")
                raise
            live = LiveSandbox(sandbox, credentials)
            self._watch(live)
        finally:
            self._booting.discard(sandbox)
        async with self._discarded_on_failure(live):
            await self.connect(sandbox)
        return live

    @contextlib.contextmanager
    def _substrate_errors(self) -> Iterator[None]:
        """Around what reads or writes the files of sandboxes: such an error says nothing of a sandbox.

        Raises: SandboxFailed, DiskFull.
        """
        try:
            yield
        except OSError as error:
            full = full_disk.explained(error, self.machine.owners_dir.parent)
            raise full or SandboxFailed("see whose a sandbox is, and how it is", error) from error

    async def _prepare(self, template: Template, member: LiveSandbox) -> None:
        """Wait until the agent can serve at full speed, and give it what most sessions ask for."""
        async with self._discarded_on_failure(member):
            try:
                await (await self.connect(member.id)).call("ready", {}, timeout_s=_READY_TIMEOUT_S)
            except (LinkLost, RemoteError, TimeoutError) as error:
                raise SandboxFailed("prepare", error) from error
            await self._configure(member, self._usual)
            self.machine.mark_warm(member.id, template)

    # --- claims ----------------------------------------------------------------------------------------------------

    async def claim(self, template: Template, claim: Claim) -> Claimed:
        for attempt in range(1, _CLAIM_TRIES + 1):
            live, warm = await self._pools.claim(template)
            try:
                await self._give(live, claim)
            except SandboxFailed:
                if attempt == _CLAIM_TRIES:
                    raise
            else:
                break
        return Claimed(sandbox=live.id, epoch=live.credentials.epoch, warm=warm)

    async def _give(self, live: LiveSandbox, claim: Claim) -> None:
        async with self._discarded_on_failure(live):
            # Before it is changed in any way: a crash now must not return it to the pool.
            self.machine.mark_used(live.id)
            await self._configure(live, claim)
            if live.death is not None:
                raise SandboxFailed("claim a sandbox", live.death.detail or "it died")
            self._claimed.add(live.id)

    async def _configure(self, live: LiveSandbox, claim: Claim) -> None:
        """Nothing to do when it already has it."""
        if claim != live.claim:
            live.claim = None
            await self.machine.configure(live.id, claim, await self.connect(live.id))
            live.claim = claim

    @contextlib.asynccontextmanager
    async def _discarded_on_failure(self, live: LiveSandbox) -> AsyncIterator[None]:
        """Once in use, a sandbox never goes back to the pool, whatever it was that failed."""
        try:
            yield
        except BaseException as error:
            # In a task of its own: whoever asked may be cancelled.
            gone = self._tasks.start(self.release(live.id), name=f"discard {live.id}")
            if isinstance(error, K8eError):
                await asyncio.wait({gone})
            raise

    def _check_held(self, sandbox: SandboxId) -> LiveSandbox:
        """Raises: SandboxFailed for one that is gone, or another gateway's by now."""
        live = self._live.get(sandbox)
        if live is None:
            raise SandboxFailed("look up sandbox", f"{sandbox} does not exist, or is not this gateway's")
        with self._substrate_errors():
            if not live.superseded and not self._owners.holds(sandbox, live.credentials.epoch):
                self._supersede(live, "another gateway has taken the sandbox over")
        if live.superseded:
            raise SandboxFailed("use the sandbox", live.superseded)
        return live

    def _supersede(self, live: LiveSandbox, reason: str) -> None:
        live.superseded = reason
        _log.warning("a sandbox is not ours any more", extra={"sandbox": live.id, "reason": reason})
        self._tell(OutOfTouch(live.id, reason))

    async def set_egress(self, sandbox: SandboxId, policy: EgressPolicy) -> None:
        self._check_held(sandbox)
        await self.machine.set_egress(sandbox, policy)

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        self._check_held(sandbox)
        return await self.machine.set_grants(sandbox, grants)

    def decisions(self) -> AsyncIterator[Decision]:
        return self.machine.decisions()

    async def settle_decisions(self) -> None:
        await self.machine.settle_decisions()

    async def connect(self, sandbox: SandboxId) -> Link:
        live = self._live.get(sandbox)
        if live is None:
            raise SandboxFailed("reach the sandbox's agent", f"{sandbox} does not exist, or is not this gateway's")
        async with live.dialing:
            if live.superseded:
                raise SandboxFailed("reach the sandbox's agent", live.superseded)
            if live.link is None or live.link.is_lost:
                try:
                    live.link = await self.machine.dial(sandbox, live.credentials)
                except DialRefused as error:
                    if error.is_superseded:
                        self._supersede(live, str(error))
                    raise SandboxFailed("reach the sandbox's agent", error) from error
                except (OSError, TimeoutError, ProtocolError, LinkLost) as error:
                    raise SandboxFailed("reach the sandbox's agent", error) from error
            return live.link

    async def release(self, sandbox: SandboxId) -> None:
        live = self._live.pop(sandbox, None)
        self._claimed.discard(sandbox)
        if live is not None:
            await self._hang_up(live)
        with self._substrate_errors():
            if not self._owners.may_remove(sandbox):
                return
        await self.machine.destroy(sandbox)
        with self._substrate_errors():
            self._owners.forget(sandbox)

    async def _hang_up(self, live: LiveSandbox) -> None:
        for watch in live.watches:
            watch.cancel()
        if live.link is not None:
            await live.link.close()

    # --- the watch -------------------------------------------------------------------------------------------------

    async def changes(self) -> AsyncIterator[Change]:
        self._untold.clear()
        for live in [self._live[sandbox] for sandbox in self._claimed & self._live.keys()]:
            self._tell(Alive(live.id) if live.death is None else Dead(live.id, live.death))
        while True:
            while self._untold:
                yield self._untold.popleft()
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, change: Change) -> None:
        if change.sandbox in self._claimed:
            self._untold.append(change)
            self._changed.set()

    def _watch(self, live: LiveSandbox) -> None:
        self._live[live.id] = live
        live.watches = [
            self._tasks.start(self._watch_death(live), name=f"death of {live.id}"),
            self._tasks.start(self._watch_memory(live), name=f"memory of {live.id}"),
        ]

    async def _watch_death(self, live: LiveSandbox) -> None:
        self._end(live, await self._insisting(live, lambda: self.machine.death(live.id)))

    def _end(self, live: LiveSandbox, death: Death) -> None:
        if live.death is None:
            live.death = live.doom or death
            if not self._pools.died(live):
                self._tell(Dead(live.id, live.death))

    async def _insisting(self, live: LiveSandbox, ask: Callable[[], Awaitable[_T]]) -> _T:
        """What the machine says once it can say it; it may take as long as the sandbox lives."""
        loop, pause_s = asyncio.get_running_loop(), 0.0
        while True:
            # Once it has failed, a try that lasts means that it is in touch again.
            steady = loop.call_later(_STEADY_S, self._tell, Alive(live.id)) if pause_s else None
            try:
                return await ask()
            except Exception as error:  # noqa: BLE001 - a driver may raise anything, and nobody else would hear of the end
                reason, is_known = str(error) or repr(error), isinstance(error, K8eError | OSError)
                fields = {"sandbox": live.id, "error": reason}
                _log.warning("out of touch with a sandbox", exc_info=not is_known, extra=fields)
                self._tell(OutOfTouch(live.id, reason))
            finally:
                if steady is not None:
                    steady.cancel()
            pause_s = min(max(2 * pause_s, _RETRY_FIRST_S), _RETRY_MOST_S)
            await asyncio.sleep(pause_s)

    async def _watch_memory(self, live: LiveSandbox) -> None:
        """Where the kernel would end the whole sandbox, its agent ends one process instead."""
        in_vain = 0
        while live.death is None:
            await self._insisting(live, lambda: self.machine.out_of_memory(live.id))
            try:
                killed = await self._kill_hog(live)
                in_vain = 0 if killed else in_vain + 1
                await self.machine.relieved(live.id)
            except Exception as error:  # noqa: BLE001 - an agent may answer anything, and a driver raise anything
                # An agent that cannot answer leaves the sandbox frozen at its limit; only removing it frees the memory.
                await self._give_up_memory(live, f"{type(error).__name__}: {error}")
                return
            if in_vain > 1:
                await self._give_up_memory(live, "no process is left to kill")

    async def _kill_hog(self, live: LiveSandbox) -> bool:
        """Whether there was one: it may have ended by itself meanwhile."""
        try:
            answer = await (await self.connect(live.id)).call("oom", {}, timeout_s=_OOM_ANSWER_TIMEOUT_S)
        except RemoteError as error:
            if error.code != "not_found":
                raise
            return False
        pid = answer.get("pid")
        if not isinstance(pid, int) or not 0 < pid < _MAX_PID:
            raise SandboxFailed("the sandbox's agent answered nonsense", "the process that it killed has no number")
        _log.info("killed a process that hit the memory limit", extra={"sandbox": live.id, "pid": pid})
        self._tell(OutOfMemory(live.id, f"process {pid} was killed"))
        return True

    async def _give_up_memory(self, live: LiveSandbox, why: str) -> None:
        if live.superseded:
            return  # its memory is another gateway's to watch
        _log.info("removing a sandbox that stays out of memory: %s", why, extra={"sandbox": live.id})
        live.doom = Death(oom=True, detail="it was out of memory and its agent could not run")
        # Its death is watched all the same: a removal that fails may have ended it, and is tried again if not.
        await self._insisting(live, lambda: self._remove(live))
        if live.death is None and not live.superseded:
            self._end(live, live.doom)

    async def _remove(self, live: LiveSandbox) -> None:
        """Unless that is over, or another gateway's to do."""
        if live.death is None and not live.superseded:
            await self.machine.destroy(live.id)

    # --- workspaces ------------------------------------------------------------------------------------------------

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        await self.machine.create_workspace(workspace, disk_bytes)

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        await self.machine.delete_workspace(workspace)

    async def share_workspace(self, parent: SandboxId) -> WorkspaceId:
        return await self.machine.share_workspace(parent)
