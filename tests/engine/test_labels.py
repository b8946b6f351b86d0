"""Labels of sessions: given, changed, selected, inherited, and still there after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.engine.engine import Engine
from k8e.engine.settings import Quotas
from k8e.errors import InvalidSpec, NotFound
from k8e.lifecycle import Phase
from k8e.model import Gates, OwnerId, Runtime, SecretRef, SessionSpec
from tests.support.at_gates import AGENT, at_gate, decide
from tests.support.calls import service_over
from tests.support.cells import OWNER, Cell, CellFactory
from tests.support.restartable_engine import RestartableEngine, Write

pytestmark = pytest.mark.anyio

OTHER = OwnerId("uid:4711")


def labels_of(cell: Cell) -> dict[str, str]:
    return dict(cell.engine.get_session(OWNER, cell.id).labels)


async def test_labels_are_given_changed_and_told_by_their_keys_alone(cells: CellFactory, engine: Engine) -> None:
    async with cells(Runtime.CONTAINER, labels={"env": "prod", "task": "42"}) as cell:
        assert labels_of(cell) == {"env": "prod", "task": "42"}
        view = await engine.update_labels(OWNER, cell.id, set={"task": "43", "note": "free text"}, remove=["env", "no"])
        assert view.labels == labels_of(cell) == {"task": "43", "note": "free text"}
        told = [json.loads(each) for each in (await engine.events(OWNER, cell.id)).events]
        (change,) = [each for each in told if each["event"] == "session.labels_changed"]
        assert (change["set"], change["removed"]) == (["note", "task"], ["env"])
        assert "free text" not in json.dumps(change)


async def test_a_list_has_the_sessions_with_all_of_the_labels_and_never_anothers(
    cells: CellFactory, engine: Engine
) -> None:
    def selected(owner: OwnerId | None, *wanted: tuple[str, str | None]) -> list[str]:
        return [view.session_id for view in engine.list_sessions(owner, labels=wanted)]

    env, batch = ("env", "prod"), ("batch", "of-this-test")
    theirs = await engine.create_session(OTHER, SessionSpec(runtime=Runtime.CONTAINER, labels=dict([env, batch])))
    async with (
        cells(Runtime.CONTAINER, labels=dict([env, batch])) as both,
        cells(Runtime.CONTAINER, labels=dict([batch])) as one,
        cells(Runtime.CONTAINER),
    ):
        assert selected(OWNER, batch) == [both.id, one.id]
        assert selected(OWNER, batch, env) == [both.id]
        assert selected(OWNER, batch, ("env", None)) == [both.id]
        assert selected(OWNER, batch, ("env", "test")) == []
        assert selected(OTHER, batch) == [theirs.session_id]
        assert selected(None, batch, env) == [theirs.session_id, both.id]
        await engine.update_labels(OWNER, one.id, set=dict([env]))
        assert selected(OWNER, batch, env) == [both.id, one.id]
        with pytest.raises(NotFound):
            await engine.update_labels(OWNER, theirs.session_id, set={"env": "mine"})
        assert engine.get_session(OTHER, theirs.session_id).labels == dict([env, batch])
    await engine.destroy_session(OTHER, theirs.session_id)


async def test_a_sub_agent_begins_with_its_parents_labels_and_then_has_its_own(
    cells: CellFactory, engine: Engine
) -> None:
    async with cells(Runtime.CONTAINER, labels={"task": "42"}) as parent:
        child = Cell(engine, (await engine.run_subagent(OWNER, parent.id)).session_id)
        assert labels_of(child) == {"task": "42"}
        await engine.update_labels(OWNER, parent.id, set={"task": "43"})
        await engine.update_labels(OWNER, child.id, set={"part": "1"})
        assert (labels_of(parent), labels_of(child)) == ({"task": "43"}, {"task": "42", "part": "1"})


async def test_labels_that_change_while_a_sub_agent_waits_for_approval_hold_nothing_up(
    cells: CellFactory, engine: Engine, tmp_path: Path
) -> None:
    service = service_over(engine, tmp_path)
    await engine.set_secret(OWNER, "label-test", "value", b"the value")
    ref = SecretRef(secret_name="label-test", key="value", env_var="TOKEN")
    try:
        # The gate comes with a later session of the tenant: nobody is asked about this one itself.
        async with cells(Runtime.CONTAINER, tenant="labels", secret_refs=(ref,), labels={"task": "42"}) as parent:
            async with cells(Runtime.CONTAINER, tenant="labels", gates=Gates(secrets=True)):
                pass
            request = pb.RunSubAgentRequest(parent_session_id=parent.id)
            async with at_gate(service.answer("RunSubAgent", AGENT, request), service) as (task, asked):
                await engine.update_labels(OWNER, parent.id, set={"task": "43"})
                await decide(service, asked)
            assert labels_of(Cell(engine, task.result().session_id)) == {"task": "43"}
    finally:
        await engine.delete_secret(OWNER, "label-test")


async def test_what_is_wrong_makes_no_session_and_changes_nothing(cells: CellFactory, engine: Engine) -> None:
    before = len(engine.list_sessions(OWNER))
    with pytest.raises(InvalidSpec, match=r"'a b' is no label's key"):
        await engine.create_session(OWNER, SessionSpec(runtime=Runtime.CONTAINER, labels={"a b": "c"}))
    assert len(engine.list_sessions(OWNER)) == before
    async with cells(Runtime.CONTAINER, labels={"task": "42"}) as cell:
        with pytest.raises(InvalidSpec, match=r"^set\[note\]: "):
            await engine.update_labels(OWNER, cell.id, set={"task": "43", "note": "a\nb"})
        assert labels_of(cell) == {"task": "42"}


async def test_how_many_a_session_has_is_the_operators_to_say(restartable: RestartableEngine, runtime: Runtime) -> None:
    async with restartable.open(quotas=Quotas(labels_per_session=2)) as engine:
        spec = SessionSpec(runtime=runtime, labels={"a": "", "b": "", "c": ""})
        with pytest.raises(InvalidSpec, match="3 labels and may have 2"):
            await engine.create_session(OWNER, spec)
        made = await engine.create_session(OWNER, SessionSpec(runtime=runtime, labels={"a": "", "b": ""}))
        with pytest.raises(InvalidSpec, match="3 labels and may have 2"):
            await engine.update_labels(OWNER, made.session_id, set={"c": ""})


async def test_labels_are_written_down_before_they_are_seen(restartable: RestartableEngine, runtime: Runtime) -> None:
    reached, written = asyncio.Event(), asyncio.Event()

    async def hold(write: Write) -> None:
        reached.set()
        await written.wait()
        await write()

    async with restartable.open() as engine:
        spec = SessionSpec(runtime=runtime, labels={"task": "42"})
        cell = Cell(engine, (await engine.create_session(OWNER, spec)).session_id)
        restartable.at_writing = hold
        call = asyncio.ensure_future(engine.update_labels(OWNER, cell.id, set={"task": "43"}))
        await reached.wait()
        assert labels_of(cell) == {"task": "42"}
        # A caller that leaves now does not take it back.
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        written.set()
        async with asyncio.timeout(60):
            while labels_of(cell) != {"task": "43"}:
                await asyncio.sleep(0)
    async with restartable.open() as engine:
        assert labels_of(Cell(engine, cell.id)) == {"task": "43"}
        assert [view.session_id for view in engine.list_sessions(OWNER, labels=[("task", "43")])] == [cell.id]


async def test_a_session_that_lost_its_sandbox_can_still_be_labelled(
    cells: CellFactory, engine: Engine, kill_sandbox: Callable[[Cell], None]
) -> None:
    async with cells(Runtime.CONTAINER) as cell:
        kill_sandbox(cell)
        async with asyncio.timeout(60):
            while engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
                await asyncio.sleep(0.01)
        await engine.update_labels(OWNER, cell.id, set={"looked-at": "yes"})
        assert labels_of(cell) == {"looked-at": "yes"}
