"""A brokered secret that changes or goes is in force nowhere any more, whatever moment it chooses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from k8e.engine.engine import Engine
from k8e.errors import SandboxFailed
from k8e.lifecycle import Phase
from k8e.model import Brokered, Grant, Runtime, SandboxId
from k8e.substrate.machine import Machine
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell, open_cell
from tests.support.restartable_engine import OwnSandboxes, RestartableEngine, Write

pytestmark = pytest.mark.anyio


BROKERED = (Brokered(secret_name="brokered", key="token", env_var="TOKEN", host="api.example"),)
OLD, NEW = "the-value-at-first", "the-value-afterwards"


class Grants(OwnSandboxes):
    """Notes what the network was told last for each sandbox, and refuses where the test wants it."""

    def __init__(self, shared: Machine) -> None:
        super().__init__(shared)
        self.values: dict[SandboxId, list[str]] = {}
        self.refused: set[SandboxId] = set()

    async def set_grants(self, sandbox: SandboxId, grants: tuple[Grant, ...]) -> str:
        if sandbox in self.refused:
            raise SandboxFailed("network: set_grants", "as the test wants it")
        certificate = await self._shared.set_grants(sandbox, grants)
        self.values[sandbox] = [grant.value for grant in grants]
        return certificate

    def of(self, cell: Cell) -> list[str]:
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        return self.values[sandbox]


@pytest.fixture
def grants(restartable: RestartableEngine, engine_machine: BareMachine) -> Grants:
    restartable.machine = grants = Grants(engine_machine)
    return grants


@pytest.fixture
async def own(restartable: RestartableEngine, grants: Grants) -> AsyncIterator[Engine]:
    """An engine that has the secret, and no other session than the test's."""
    async with restartable.open() as engine:
        await engine.set_secret(OWNER, "brokered", "token", OLD.encode())
        yield engine


def _before_it_is_active(restartable: RestartableEngine, engine: Engine, act: Callable[[], Awaitable[object]]) -> None:
    """When the first session has been given its secrets and is about to be usable."""
    usual = restartable.at_writing

    async def act_first(write: Write) -> None:
        if engine.list_sessions(OWNER, Phase.ACTIVE):
            restartable.at_writing = usual
            await act()
        await write()

    restartable.at_writing = act_first


async def _change(engine: Engine) -> None:
    await engine.set_secret(OWNER, "brokered", "token", NEW.encode())


async def _delete(engine: Engine) -> None:
    await engine.delete_secret(OWNER, "brokered", "token")


@pytest.mark.parametrize(("act", "value"), [(_change, NEW), (_delete, "")], ids=["changed", "deleted"])
async def test_a_secret_that_changes_while_a_session_is_made_is_what_it_gets(
    runtime: Runtime,
    restartable: RestartableEngine,
    own: Engine,
    grants: Grants,
    act: Callable[[Engine], Awaitable[None]],
    value: str,
) -> None:
    seen: list[list[str]] = []

    async def look_and_act() -> None:
        seen.extend(grants.values.values())
        await act(own)

    _before_it_is_active(restartable, own, look_and_act)
    async with open_cell(own, runtime, brokered=BROKERED) as cell:
        assert seen == [[OLD]], "the control: it had been given what it was"
        assert grants.of(cell) == [value]


async def test_a_session_that_cannot_be_given_what_a_secret_is_now_is_not_made(
    runtime: Runtime, restartable: RestartableEngine, own: Engine, grants: Grants
) -> None:
    async def change_and_break() -> None:
        await _change(own)
        grants.refused.update(grants.values)

    _before_it_is_active(restartable, own, change_and_break)
    with pytest.raises(SandboxFailed, match="as the test wants it"):
        async with open_cell(own, runtime, brokered=BROKERED):
            pass
    assert own.status().sessions == 0
    assert len(grants.values) == 1, "the control: it had been given what it was"
    async with asyncio.timeout(60):
        while await grants.survivors():
            await asyncio.sleep(0.01)


async def test_a_session_that_cannot_be_told_of_a_change_keeps_it_from_no_other(
    runtime: Runtime, own: Engine, grants: Grants
) -> None:
    async with (
        open_cell(own, runtime, brokered=BROKERED) as first,
        open_cell(own, runtime, brokered=BROKERED) as second,
    ):
        assert grants.of(second) == [OLD], "the control"
        grants.refused.add(next(iter(grants.values)))
        with pytest.raises(SandboxFailed, match="as the test wants it"):
            await _change(own)
        assert grants.of(first) == [OLD]
        assert grants.of(second) == [NEW]
