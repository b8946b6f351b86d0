"""One workspace per owner and label, also for those who ask while it is being deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from k8e.engine.store import Store
from k8e.engine.substrate import Substrate
from k8e.engine.workspaces import WORKSPACES, Workspaces
from k8e.errors import Conflict, DiskFull, NotFound
from k8e.model import MIB, OwnerId, WorkspaceId

pytestmark = pytest.mark.anyio

ALICE = OwnerId("alice")


class _Disks:
    """A substrate's workspaces; a deletion waits for the test to let it go on."""

    def __init__(self) -> None:
        self.made: set[WorkspaceId] = set()
        self.is_used = False
        self.reached = asyncio.Event()
        self.may_go = asyncio.Event()

    async def create_workspace(self, workspace: WorkspaceId, disk_bytes: int) -> None:
        self.made.add(workspace)

    async def delete_workspace(self, workspace: WorkspaceId) -> None:
        self.reached.set()
        await self.may_go.wait()
        if self.is_used:
            raise Conflict("in use")
        self.made.discard(workspace)


@pytest.fixture
async def disks() -> _Disks:
    return _Disks()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "engine.sqlite")
    yield store
    store.close()


@pytest.fixture
async def workspaces(store: Store, disks: _Disks) -> Workspaces:
    return Workspaces(store, cast("Substrate", disks), per_owner=3)


def _make(workspaces: Workspaces) -> asyncio.Future[WorkspaceId]:
    return asyncio.ensure_future(workspaces.find_or_create(ALICE, "project", disk_bytes=MIB))


@asynccontextmanager
async def _while_it_is_deleted(workspaces: Workspaces, disks: _Disks) -> AsyncIterator[asyncio.Future[None]]:
    deleting = asyncio.ensure_future(workspaces.delete(ALICE, "project"))
    await disks.reached.wait()
    yield deleting
    disks.may_go.set()


async def _let_it_come_as_far_as_it_can(store: Store) -> None:
    """Whatever was asked of the store before this is done, and whoever waited for it has had a turn."""
    for _ in range(3):
        await store.commit()


def _written(store: Store) -> list[str]:
    return [stored.record.workspace for stored in store.load(WORKSPACES)]


async def test_who_asks_for_a_workspace_that_is_being_deleted_gets_a_new_one_that_stays(
    workspaces: Workspaces, store: Store, disks: _Disks
) -> None:
    old = await _make(workspaces)
    async with _while_it_is_deleted(workspaces, disks) as deleting:
        making = _make(workspaces)
        await _let_it_come_as_far_as_it_can(store)
    await deleting
    new = await making
    assert new != old
    assert disks.made == {new}
    assert _written(store) == [new]
    assert workspaces.find(ALICE, "project").workspace == new


async def test_who_asks_for_a_workspace_whose_deletion_is_refused_gets_that_one(
    workspaces: Workspaces, store: Store, disks: _Disks
) -> None:
    old = await _make(workspaces)
    disks.is_used = True
    async with _while_it_is_deleted(workspaces, disks) as deleting:
        making = _make(workspaces)
        await _let_it_come_as_far_as_it_can(store)
    with pytest.raises(Conflict):
        await deleting
    assert await making == old
    assert disks.made == {old}
    assert _written(store) == [old]


async def test_a_workspace_is_deleted_once(workspaces: Workspaces, store: Store, disks: _Disks) -> None:
    await _make(workspaces)
    async with _while_it_is_deleted(workspaces, disks) as deleting:
        again = asyncio.ensure_future(workspaces.delete(ALICE, "project"))
        await _let_it_come_as_far_as_it_can(store)
    await deleting
    with pytest.raises(Conflict, match="already"):
        await again
    assert _written(store) == []
    with pytest.raises(NotFound):
        await workspaces.delete(ALICE, "project")


async def test_one_that_could_not_be_written_down_is_not_there_and_counts_for_nothing(
    workspaces: Workspaces, store: Store, disks: _Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_changes: object) -> int:
        raise DiskFull("/data")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", full)
        for tenant in ("project", "a", "b", "c"):
            with pytest.raises(DiskFull):
                await workspaces.find_or_create(ALICE, tenant, disk_bytes=MIB)
    assert workspaces.list(ALICE) == []
    assert disks.made == set()
    assert {await _make(workspaces)} == disks.made


async def test_all_who_ask_at_once_for_a_new_one_get_the_same(
    workspaces: Workspaces, store: Store, disks: _Disks
) -> None:
    found = await asyncio.gather(*(_make(workspaces) for _ in range(3)))
    assert disks.made == set(found)
    assert _written(store) == [found[0]]
