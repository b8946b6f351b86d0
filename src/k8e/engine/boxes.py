"""A live sandbox as the engine sees it: its link, its death, and the watch over its memory.

Each box is owned by tasks of the engine's group. Requests borrow the link; when it breaks while the sandbox
lives, the next request dials again, and whoever else needs it then waits for the same dial. An agent that hangs up on
whoever comes is dialled less and less often. Death is learnt once, from the kernel, and then never doubted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from k8e.engine import answers
from k8e.engine.backoff import DEFAULT_BACKOFF, Backoff, BackoffSettings
from k8e.engine.substrate import Substrate
from k8e.engine.tasks import Tasks
from k8e.errors import SandboxFailed, SandboxLost
from k8e.model import Claim, Death, EgressPolicy, SandboxId, Template
from k8e.wire.aio import Link, LinkLost, ProtocolError, RemoteError

__all__ = ["Box"]

_log = logging.getLogger(__name__)

_READY_TIMEOUT_S: Final = 30.0
_OOM_ANSWER_TIMEOUT_S: Final = 5.0
_DYING_S: Final = 2.0


class Box:
    """One sandbox. `died` is called once, in the loop, when it is gone without having been asked to."""

    def __init__(
        self,
        sandbox: SandboxId,
        template: Template,
        substrate: Substrate,
        tasks: Tasks,
        *,
        backoff: BackoffSettings = DEFAULT_BACKOFF,
    ) -> None:
        self.id = sandbox
        self.template = template
        self.claim: Claim | None = None
        self.died: Callable[[Box, Death], None] | None = None
        self._substrate = substrate
        self._tasks = tasks
        self._link: Link | None = None
        self._dialing: asyncio.Task[Link | Exception | None] | None = None
        self._backoff = Backoff(backoff)
        self._death: Death | None = None
        self._is_out_of_memory = False
        self._watches: list[asyncio.Task[None]] = []

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    async def connect(self) -> None:
        """Dial a sandbox that has booted or that survived a restart, and watch it from now on."""
        await self.link()
        self._watches = [
            self._tasks.start(self._watch_death(), name=f"death of {self.id}"),
            self._tasks.start(self._watch_memory(), name=f"memory of {self.id}"),
        ]

    async def prepare(self, claim: Claim) -> None:
        """Wait until the agent can serve at full speed, and give it what most sessions ask for."""
        link = await self.link()
        await link.call("ready", {}, timeout_s=_READY_TIMEOUT_S)
        await self.configure(claim)

    async def configure(self, claim: Claim) -> None:
        """Give the sandbox what its session may use; nothing to do when it already has it."""
        if claim != self.claim:
            await self._substrate.configure(self.id, claim, await self.link())
            self.claim = claim

    async def set_egress(self, policy: EgressPolicy) -> None:
        """Change what it may reach; in force on return. Raises: SandboxFailed."""
        await self._substrate.set_egress(self.id, policy)
        if self.claim is not None:
            self.claim = replace(self.claim, egress=policy)

    async def link(self) -> Link:
        """A working link, or one that was a moment ago. Raises: SandboxLost, SandboxFailed."""
        # A lost one may still be here: whoever forgets it has its turn later than those that the loss has woken.
        if self._link is not None and not self._link.is_lost:
            return self._link
        made = await self._dialled()
        if isinstance(made, Exception):
            raise await self.unreachable(made) from made
        return made

    async def _dialled(self) -> Link | Exception:
        """What comes of the dial that is under way, or of a new one; all who wait get the same."""
        if self._dialing is None or self._dialing.done():
            self._forget(self._link)
            if self._backoff.is_too_soon(_now()):
                # Not asked whether it is dying: there was time enough to hear of that.
                raise self.lost() if self.is_dead else self._hangs_up()
            self._dialing = self._tasks.start(self._dial(), name=f"dial {self.id}")
        dialing = self._dialing
        await asyncio.wait([dialing])
        made = None if dialing.cancelled() else dialing.result()
        return made or LinkLost("closed by this side")

    async def _dial(self) -> Link | Exception:
        await self._wait_for_turn()
        if self.is_dead:
            return self.lost()
        self._backoff.dialled(_now())
        try:
            link = await self._substrate.dial(self.id)
        except (SandboxFailed, OSError, TimeoutError, ProtocolError, LinkLost) as error:
            return error
        self._link = link
        self._tasks.start(self._forget_when_closed(link), name=f"link of {self.id}")
        return link

    async def _wait_for_turn(self) -> None:
        wait_s = self._backoff.wait_s(_now())
        if not wait_s:
            return
        if self._watches:
            await asyncio.wait(self._watches[:1], timeout=wait_s)
        else:
            await asyncio.sleep(wait_s)

    def _hangs_up(self) -> SandboxFailed:
        return SandboxFailed("reach the sandbox's agent", f"it hung up {self._backoff.failures} times in a row")

    async def unreachable(self, error: Exception) -> SandboxFailed:
        """The error for whoever its agent did not answer: SandboxLost when that is because it dies."""
        if await self._is_dying():
            return self.lost()
        return SandboxFailed("reach the sandbox's agent", error)

    async def _is_dying(self) -> bool:
        # A dying sandbox hangs up and refuses connections a moment before the kernel reports its death.
        if self._watches:
            await asyncio.wait(self._watches[:1], timeout=_DYING_S)
        return self.is_dead

    def lost(self) -> SandboxLost:
        """The error for whoever needed this sandbox alive."""
        detail = self._death.detail if self._death else "it does not answer"
        return SandboxLost("the sandbox is gone", detail)

    async def release(self) -> None:
        """Stop watching and hang up; the sandbox itself goes on."""
        for watch in self._watches:
            watch.cancel()
        self._watches = []
        if self._dialing is not None and self.is_dead:
            self._dialing.cancel()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def destroy(self) -> None:
        """Remove the sandbox and every trace of it."""
        if self._death is None:
            self._death = Death(detail="destroyed")
        self.died = None
        await self.release()
        await self._substrate.destroy(self.id)

    async def condemn(self) -> None:
        """Remove a sandbox that no longer keeps its promises; whoever holds it learns of it as of any other death."""
        await self._substrate.destroy(self.id)

    def oom_kills(self) -> int:
        """How many processes the kernel has killed here for memory."""
        return self._substrate.oom_kills(self.id)

    async def _forget_when_closed(self, link: Link) -> None:
        await link.closed()
        self._forget(link)

    def _forget(self, link: Link | None) -> None:
        if link is not None and self._link is link:
            self._link = None
            self._backoff.lost(_now())

    async def _watch_death(self) -> None:
        death = await self._substrate.death(self.id)
        if self._is_out_of_memory:
            death = Death(oom=True, detail="it was out of memory and its agent could not run")
        self._death = death
        if self._link is not None:
            await self._link.close()
        if self.died is not None:
            self.died(self, death)

    async def _watch_memory(self) -> None:
        in_vain = 0
        while not self.is_dead:
            await self._substrate.out_of_memory(self.id)
            try:
                in_vain = 0 if await self._kill_hog() else in_vain + 1
                await self._substrate.relieved(self.id)
                if in_vain > 1:
                    await self._give_up_memory("no process is left to kill")
            except (LinkLost, RemoteError, TimeoutError, SandboxFailed) as error:
                # An agent that cannot answer leaves the sandbox frozen at its limit; only removing it frees the memory.
                await self._give_up_memory(f"{type(error).__name__}: {error}")

    async def _give_up_memory(self, why: str) -> None:
        _log.info("removing a sandbox that stays out of memory: %s", why, extra={"sandbox": self.id})
        self._is_out_of_memory = True
        await self.condemn()

    async def _kill_hog(self) -> bool:
        """Whether there was one: it may have ended by itself meanwhile."""
        try:
            killed = await (await self.link()).call("oom", {}, timeout_s=_OOM_ANSWER_TIMEOUT_S)
        except RemoteError as error:
            if error.code != "not_found":
                raise
            return False
        pid = answers.integer(killed, "pid", most=answers.INT32)
        _log.info("killed a process that hit the memory limit", extra={"sandbox": self.id, "pid": pid})
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
