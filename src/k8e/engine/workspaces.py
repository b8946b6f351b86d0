"""Workspaces that outlive sessions: one per owner and tenant label, found again by the same pair."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from k8e.engine.gates import union
from k8e.engine.store import Kind, Store
from k8e.engine.substrate import Substrate
from k8e.errors import Conflict, Exhausted, NotFound
from k8e.model import Gates, OwnerId, WorkspaceId
from k8e.random_ids import new_id

__all__ = ["WORKSPACES", "WorkspaceView", "Workspaces"]

NO_GATES: Final = Gates()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceView:
    """A workspace as it is shown and as it is written down."""

    owner: OwnerId
    tenant: str
    workspace: WorkspaceId
    disk_bytes: int
    last_used: float
    gates: Gates = field(default_factory=Gates)
    """All that sessions of this tenant ever had: they hold for whoever uses it, and when nobody does."""


WORKSPACES: Final = Kind("workspace", WorkspaceView, lambda record: (record.owner, record.tenant))


class Workspaces:
    def __init__(self, store: Store, substrate: Substrate, *, per_owner: int) -> None:
        self._per_owner = per_owner
        self._store = store
        self._substrate = substrate
        self._by_key: dict[tuple[OwnerId, str], WorkspaceView] = {
            (stored.record.owner, stored.record.tenant): stored.record for stored in store.load(WORKSPACES)
        }
        self._deletions: dict[tuple[OwnerId, str], asyncio.Event] = {}
        """Those under way; each is set when it is over, however it went."""
        self._writing = asyncio.Lock()
        """Of several who ask for a new one at once the first makes it, and none is counted that was not written down."""

    async def find_or_create(
        self, owner: OwnerId, tenant: str, *, disk_bytes: int, gates: Gates = NO_GATES
    ) -> WorkspaceId:
        """The pair's workspace; the first caller decides its size, every one may add gates.

        Raises: Exhausted when the owner has too many.
        """
        while True:
            # What is being deleted may be gone before it is used, or stay if that is refused: only its end tells.
            if deletion := self._deletions.get((owner, tenant)):
                await deletion.wait()
            async with self._writing:
                if (owner, tenant) not in self._deletions:
                    view = await self._write(owner, tenant, disk_bytes, gates)
                    break
        await self._substrate.create_workspace(view.workspace, view.disk_bytes)
        return view.workspace

    async def _write(self, owner: OwnerId, tenant: str, disk_bytes: int, gates: Gates) -> WorkspaceView:
        known = self._by_key.get((owner, tenant))
        if known is None and (count := len(self.list(owner))) >= self._per_owner:
            raise Exhausted(f"you already have {count} workspaces: delete one with `k8e sandbox workspaces delete`")
        view = WorkspaceView(
            owner=owner,
            tenant=tenant,
            workspace=known.workspace if known else WorkspaceId(new_id("ws")),
            disk_bytes=known.disk_bytes if known else disk_bytes,
            last_used=time.time(),
            gates=union(known.gates, gates) if known else gates,
        )
        # Written down before it is made: a crash in between leaves a record whose workspace is made at next use,
        # never a workspace that nobody knows.
        await self._store.commit(WORKSPACES.put(view))
        self._by_key[owner, tenant] = view
        return view

    def list(self, owner: OwnerId | None) -> list[WorkspaceView]:
        """An owner's, or everybody's."""
        found = (view for view in self._by_key.values() if owner in (None, view.owner))
        return sorted(found, key=lambda view: (view.owner, view.tenant))

    def gates(self, owner: OwnerId, tenant: str) -> Gates:
        """What holds for the pair; nothing where there is none yet."""
        known = self._by_key.get((owner, tenant))
        return known.gates if known else NO_GATES

    def find(self, owner: OwnerId, tenant: str) -> WorkspaceView:
        """Raises: NotFound."""
        view = self._by_key.get((owner, tenant))
        if view is None:
            raise NotFound("workspace", tenant)
        return view

    async def delete(self, owner: OwnerId, tenant: str) -> None:
        """Remove it with its content. Raises: NotFound, Conflict while a session uses it or somebody else removes it."""
        key, view = (owner, tenant), self.find(owner, tenant)
        if key in self._deletions:
            raise Conflict(f"workspace {tenant} is already being deleted")
        deletion = self._deletions[key] = asyncio.Event()
        try:
            await self._substrate.delete_workspace(view.workspace)
            await self._store.commit(WORKSPACES.delete(owner, tenant))
            del self._by_key[key]
        finally:
            del self._deletions[key]
            deletion.set()
