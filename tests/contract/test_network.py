"""What sessions may reach, as the engine keeps it: the default, lists of one's own, changes, children."""

from __future__ import annotations

import json

import pytest

from k8e.engine.engine import Engine
from k8e.errors import Conflict, Denied, InvalidSpec, NotFound
from k8e.model import EgressMode, OwnerId, Runtime, SessionSpec
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = [pytest.mark.anyio, pytest.mark.not_bare]

_DEFAULT = ("github.com", "raw.githubusercontent.com")


def _hosts(cell: Cell) -> tuple[str, ...]:
    return cell.engine.get_session(OWNER, cell.id).allowed_hosts


async def test_a_session_that_asks_for_nothing_shows_the_servers_list(cell: Cell) -> None:
    view = cell.engine.get_session(OWNER, cell.id)
    assert (view.network, view.allowed_hosts) == (EgressMode.LIST, _DEFAULT)


async def test_a_list_is_changed_while_the_session_lives(cell: Cell) -> None:
    update = cell.engine.update_hosts
    await update(OWNER, cell.id, add=["Example.com."], remove=["github.com"])
    assert _hosts(cell) == ("raw.githubusercontent.com", "example.com")
    await update(OWNER, cell.id, hosts=["10.0.0.0/8:22"])
    assert _hosts(cell) == ("10.0.0.0/8:22",)
    with pytest.raises(InvalidSpec, match="anybody can register"):
        await update(OWNER, cell.id, add=["fine.example", "*.com"])
    assert _hosts(cell) == ("10.0.0.0/8:22",)
    await update(OWNER, cell.id)
    assert _hosts(cell) == ()
    changes = [json.loads(row) for row in (await cell.engine.events(OWNER, cell.id)).events]
    assert [row["allowed_hosts"] for row in changes if row["event"] == "session.hosts_changed"][-1] == []


async def test_a_child_begins_with_its_parents_list_and_then_has_its_own(cell: Cell) -> None:
    await cell.engine.update_hosts(OWNER, cell.id, hosts=[])
    child = Cell(cell.engine, (await cell.engine.run_subagent(OWNER, cell.id)).session_id)
    assert _hosts(child) == ()
    await cell.engine.update_hosts(OWNER, cell.id, add=["parent.example"])
    await cell.engine.update_hosts(OWNER, child.id, add=["child.example"])
    assert (_hosts(cell), _hosts(child)) == (("parent.example",), ("child.example",))


async def test_nobody_changes_or_sees_anothers_network(cell: Cell) -> None:
    other = OwnerId("uid:1")
    assert [each async for each in cell.engine.egress(OWNER, cell.id)] == []
    for call in (
        lambda: cell.engine.update_hosts(other, cell.id, add=["a.example"]),
        lambda: cell.engine.pip_install(other, cell.id, ["a"]),
    ):
        with pytest.raises(NotFound):
            await call()
    with pytest.raises(NotFound):
        cell.engine.egress(other, cell.id)


async def test_a_session_without_a_network_has_no_list(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime, network=EgressMode.NONE) as cell:
        assert _hosts(cell) == ()
        with pytest.raises(Conflict, match="no network"):
            await cell.engine.update_hosts(OWNER, cell.id, add=["a.example"])


async def test_what_cannot_be_given_is_refused_before_anything_is_built(engine: Engine, runtime: Runtime) -> None:
    before = len(engine.list_sessions(OWNER))
    with pytest.raises(Denied, match="--allow-open-network"):
        await engine.create_session(OWNER, SessionSpec(runtime=runtime, network=EgressMode.OPEN))
    with pytest.raises(InvalidSpec, match="loopback"):
        await engine.create_session(OWNER, SessionSpec(runtime=runtime, allowed_hosts=("127.0.0.1",)))
    assert len(engine.list_sessions(OWNER)) == before
