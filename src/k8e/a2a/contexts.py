"""A context's session: made at its first message, used by all later ones, ended by the server when nobody uses it.

Its id is derived from the context's, so after a restart of this process the same context finds the same session. Ids
live inside the owner: the same context of somebody else is another session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from k8e.client.aio import AsyncSandboxClient
from k8e.client.errors import Conflict, NotFound
from k8e.client.values import Limits

__all__ = ["Contexts", "Place", "session_id_of"]

REMEMBERED = 4096
"""Contexts that are known to have a session; for others one more question is asked."""


def session_id_of(context_id: str) -> str:
    """One for each context, whatever its id is made of."""
    return f"a2a-{hashlib.sha256(context_id.encode()).hexdigest()[:24]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The session that a message is worked on in."""

    session_id: str
    generation: int
    is_new: bool


@dataclass(slots=True)
class _Known:
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = 0


class Contexts:
    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    async def enter(
        self, client: AsyncSandboxClient, owner: str, context_id: str, *, gone: Place | None = None
    ) -> Place:
        """The context's session, made if there is none or the one that was there is gone. Raises: SandboxError."""
        name = session_id_of(context_id)
        known = self._remembered(owner, name)
        async with known.making:
            is_new = False
            if known.generation == (gone.generation if gone else 0):
                is_new = await self._made(client, name, replaces=gone is not None)
                known.generation += 1
            return Place(session_id=name, generation=known.generation, is_new=is_new)

    async def _made(self, client: AsyncSandboxClient, name: str, *, replaces: bool) -> bool:
        if replaces:
            # One whose sandbox died still has its name.
            with contextlib.suppress(NotFound):
                await client.destroy_session(name)
        try:
            await client.create_session(session_id=name, limits=Limits(idle_timeout_s=self._idle_s))
        except Conflict:
            return False
        return True

    def _remembered(self, owner: str, name: str) -> _Known:
        known = self._known.setdefault((owner, name), _Known())
        self._known.move_to_end((owner, name))
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known
