"""A live sandbox as the engine sees it: its link and its death.

Requests borrow the link; when it breaks while the sandbox lives, the next request connects again, and whoever else needs
it then waits for the same connection. An agent that hangs up on whoever comes is dialled less and less often. Death is
learnt once, from the substrate, and then never doubted; that nothing is known for a while is not death.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from k8e.engine.backoff import DEFAULT_BACKOFF, Backoff, BackoffSettings
from k8e.engine.substrate import Substrate
from k8e.errors import SandboxFailed, SandboxLost, SandboxUnreachable
from k8e.model import Death, EgressPolicy, SandboxId
from k8e.tasks import Tasks
from k8e.wire.aio import Link, LinkLost, ProtocolError

__all__ = ["Box"]

_DYING_S: Final = 2.0


class Box:
    """One sandbox. `died` is called once, in the loop, when it is gone without having been asked to."""

    def __init__(
        self,
        sandbox: SandboxId,
        substrate: Substrate,
        tasks: Tasks,
        *,
        backoff: BackoffSettings = DEFAULT_BACKOFF,
    ) -> None:
        self.id = sandbox
        self.died: Callable[[Box, Death], None] | None = None
        self.out_of_touch = ""
        """Why it is not known whether it lives; empty while it is."""
        self._substrate = substrate
        self._tasks = tasks
        self._link: Link | None = None
        self._dialing: asyncio.Task[Link | Exception | None] | None = None
        self._backoff = Backoff(backoff)
        self._death: Death | None = None
        self._is_over = asyncio.Event()

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    async def connect(self) -> None:
        """Take up the connection of a sandbox that has just been claimed, or that survived a restart. Raises: SandboxFailed."""
        self._use(await self._substrate.connect(self.id))

    async def set_egress(self, policy: EgressPolicy) -> None:
        """Change what it may reach; in force on return. Raises: SandboxFailed."""
        await self._substrate.set_egress(self.id, policy)

    async def link(self) -> Link:
        """A working link, or one that was a moment ago. Raises: SandboxLost, SandboxUnreachable."""
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
            link = await self._substrate.connect(self.id)
        except (SandboxFailed, OSError, TimeoutError, ProtocolError, LinkLost) as error:
            return error
        self._use(link)
        return link

    def _use(self, link: Link) -> None:
        self._link = link
        self.out_of_touch = ""
        self._tasks.start(self._forget_when_closed(link), name=f"link of {self.id}")

    async def _wait_for_turn(self) -> None:
        if wait_s := self._backoff.wait_s(_now()):
            await self._ends_within(wait_s)

    def _hangs_up(self) -> SandboxUnreachable:
        return self._out_of_reach(f"it hung up {self._backoff.failures} times in a row")

    async def unreachable(self, error: Exception) -> SandboxFailed:
        """The error for whoever its agent did not answer: SandboxLost when that is because it dies."""
        # A dying sandbox hangs up and refuses connections a moment before its death is reported.
        await self._ends_within(_DYING_S)
        if self.is_dead:
            return self.lost()
        return self._out_of_reach(error)

    def _out_of_reach(self, why: Exception | str) -> SandboxUnreachable:
        reason = f"out of touch with the sandbox: {self.out_of_touch}" if self.out_of_touch else why
        return SandboxUnreachable("reach the sandbox's agent", reason)

    async def _ends_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()

    def lost(self) -> SandboxLost:
        """The error for whoever needed this sandbox alive."""
        detail = self._death.detail if self._death else "it does not answer"
        return SandboxLost("the sandbox is gone", detail)

    def end(self, death: Death) -> None:
        """It is dead: whoever needs it hears why."""
        if self._death is not None:
            return
        self._death = death
        self._is_over.set()
        if self._link is not None:
            self._tasks.start(self._link.close(), name=f"hang up {self.id}")
        if self.died is not None:
            self.died(self, death)

    async def hang_up(self) -> None:
        """Let go of the link; the sandbox itself goes on."""
        if self._dialing is not None and self.is_dead:
            self._dialing.cancel()
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def destroy(self) -> None:
        """Remove the sandbox and every trace of it. Raises: SandboxFailed."""
        self.died = None
        self.end(Death(detail="destroyed"))
        await self.hang_up()
        await self._substrate.release(self.id)

    async def condemn(self, why: str) -> None:
        """Remove a sandbox that no longer keeps its promises; whoever holds it learns of it as of any other death."""
        self.end(Death(detail=why))
        await self._substrate.release(self.id)

    async def _forget_when_closed(self, link: Link) -> None:
        await link.closed()
        self._forget(link)

    def _forget(self, link: Link | None) -> None:
        if link is not None and self._link is link:
            self._link = None
            self._backoff.lost(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
