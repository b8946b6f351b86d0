"""A brokered secret that changes or goes is in force nowhere any more, whatever moment it chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from k8e.engine.engine import Engine
from k8e.engine.store import Change, Store
from k8e.errors import SandboxFailed
from k8e.lifecycle import Phase
from k8e.model import Brokered, Grant, Runtime, SandboxId
from tests.support.cells import OWNER, CellFactory

pytestmark = pytest.mark.anyio

BROKERED = (Brokered(secret_name="brokered", key="token", env_var="TOKEN", host="api.example"),)
OLD, NEW = "the-value-at-first", "the-value-afterwards"


class Grants:
    """What the network was told last, for each sandbox."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[SandboxId, list[str]] = {}
        self.refused: set[SandboxId] = set()
        self._set_grants = engine._sessions.brokering._set_grants
        monkeypatch.setattr(engine._sessions.brokering, "_set_grants", self._tell)

    async def _tell(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        if sandbox in self.refused:
            raise SandboxFailed("network: set_grants", "as the test wants it")
        certificate = await self._set_grants(sandbox, grants)
        self.values[sandbox] = [grant.value for grant in grants]
        return certificate

    def of(self, engine: Engine, session_id: str) -> list[str]:
        sandbox = engine.get_session(OWNER, session_id).sandbox
        assert sandbox is not None
        return self.values[sandbox]


@pytest.fixture
async def grants(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Grants]:
    await engine.set_secret(OWNER, "brokered", "token", OLD.encode())
    yield Grants(engine, monkeypatch)
    await engine.delete_secret(OWNER, "brokered")


def _before_it_is_active(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """When the next session has been given its secrets and is about to be usable."""
    commit, times = Store.commit, list[int]()

    async def act_first(store: Store, *changes: Change) -> None:
        starts = (change.sql.startswith("UPDATE sessions SET phase") for change in changes)
        if any(starts) and changes[0].values[0] is Phase.ACTIVE and not times:
            times.append(1)
            await act()
        await commit(store, *changes)

    monkeypatch.setattr(Store, "commit", act_first)


async def _change(engine: Engine) -> None:
    await engine.set_secret(OWNER, "brokered", "token", NEW.encode())


async def _delete(engine: Engine) -> None:
    await engine.delete_secret(OWNER, "brokered", "token")


@pytest.mark.parametrize(("act", "value"), [(_change, NEW), (_delete, "")], ids=["changed", "deleted"])
async def test_a_secret_that_changes_while_a_session_is_made_is_what_it_gets(
    runtime: Runtime,
    cells: CellFactory,
    engine: Engine,
    grants: Grants,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Engine], Awaitable[None]],
    value: str,
) -> None:
    seen: list[list[str]] = []

    async def look_and_act() -> None:
        seen.extend(grants.values.values())
        await act(engine)

    _before_it_is_active(monkeypatch, look_and_act)
    async with cells(runtime, brokered=BROKERED) as cell:
        assert seen == [[OLD]], "the control: it had been given what it was"
        assert grants.of(engine, cell.id) == [value]


async def test_a_session_that_cannot_be_given_what_a_secret_is_now_is_not_made(
    runtime: Runtime, cells: CellFactory, engine: Engine, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.status().sessions

    async def change_and_break() -> None:
        await _change(engine)
        grants.refused.update(grants.values)

    _before_it_is_active(monkeypatch, change_and_break)
    with pytest.raises(SandboxFailed, match="as the test wants it"):
        async with cells(runtime, brokered=BROKERED):
            pass
    assert engine.status().sessions == before
    (sandbox,) = grants.values
    async with asyncio.timeout(60):
        while sandbox in await engine._substrate.survivors():
            await asyncio.sleep(0.01)


async def test_a_session_that_cannot_be_told_of_a_change_keeps_it_from_no_other(
    runtime: Runtime, cells: CellFactory, engine: Engine, grants: Grants
) -> None:
    async with cells(runtime, brokered=BROKERED) as first, cells(runtime, brokered=BROKERED) as second:
        assert grants.of(engine, second.id) == [OLD], "the control"
        grants.refused.add(next(iter(grants.values)))
        with pytest.raises(SandboxFailed, match="as the test wants it"):
            await _change(engine)
        assert grants.of(engine, first.id) == [OLD]
        assert grants.of(engine, second.id) == [NEW]
