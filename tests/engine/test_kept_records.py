"""What the engine keeps of sessions is what it has said last, and what somebody else has written is not overwritten."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import replace

import pytest

from k8e.engine.records import SESSIONS, SessionRecord
from k8e.engine.store import Change, Store
from k8e.errors import SandboxLost, StoreFailed
from k8e.lifecycle import Phase
from k8e.model import Command, Runtime, SessionSpec, Shell
from k8e.substrate.owners import SandboxOwners
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell
from tests.support.restartable_engine import AtWriting, RestartableEngine, Write

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0


def _kept(restartable: RestartableEngine) -> dict[str, SessionRecord]:
    """What the next server would find."""
    with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as store:
        return {stored.record.session_id: stored.record for stored in store.load(SESSIONS)}


def _before_any(restartable: RestartableEngine, *changes: Change) -> AtWriting:
    """Somebody else makes these changes after the engine has read its records, and before it writes the first."""
    turn, is_done = asyncio.Lock(), False

    async def change_first(write: Write) -> None:
        nonlocal is_done
        async with turn:
            if not is_done:
                is_done = True
                with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as other:
                    await other.commit(*changes)
        await write()

    return change_first


async def test_a_session_that_another_gateway_has_taken_over_meanwhile_is_left_to_it(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        for name in ("taken", "mine"):
            await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id=name))
    before = _kept(restartable)
    theirs = replace(before["taken"], gateway="gw-other", epoch=before["taken"].epoch + 5)
    take_first = _before_any(restartable, SESSIONS.put(theirs))
    usual, restartable.at_writing = restartable.at_writing, take_first
    async with restartable.open() as engine:
        restartable.at_writing = usual
        assert [view.session_id for view in engine.list_sessions(OWNER)] == ["mine"]
        assert theirs.sandbox in await restartable.machine.survivors(), "nor is its sandbox touched"
        assert _kept(restartable)["taken"] == theirs
        mine = _kept(restartable)["mine"]
        assert (mine.gateway, mine.epoch) == (before["mine"].gateway, before["mine"].epoch + 1), "the control"
        await engine.destroy_session(OWNER, "mine")
    assert _kept(restartable) == {"taken": theirs}


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.TERMINATING])
async def test_a_session_that_another_gateway_has_changed_meanwhile_is_neither_failed_nor_forgotten(
    runtime: Runtime, restartable: RestartableEngine, engine_machine: BareMachine, phase: Phase
) -> None:
    async with restartable.open() as engine:
        for name in ("theirs", "mine"):
            await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id=name))
    kept = _kept(restartable)
    for record in kept.values():
        await engine_machine.destroy(record.sandbox)
        with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as store:
            await store.commit(SESSIONS.put(replace(record, phase=phase)))
    theirs = replace(kept["theirs"], gateway="gw-other", epoch=9)
    usual, restartable.at_writing = restartable.at_writing, _before_any(restartable, SESSIONS.put(theirs))
    async with restartable.open() as engine:
        restartable.at_writing = usual
        assert _kept(restartable)["theirs"] == theirs
        mine = [(view.session_id, view.phase) for view in engine.list_sessions(OWNER)]
        assert mine == ([("mine", Phase.FAILED)] if phase is Phase.ACTIVE else []), "the control"


async def test_a_session_whose_sandbox_another_living_gateway_holds_is_left_to_it(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        cell = Cell(engine, (await engine.create_session(OWNER, SessionSpec(runtime=runtime))).session_id)
        await cell.sh("echo kept")
        place = restartable.kept(cell)
        record = _kept(restartable)[cell.id]
    owners = restartable.machine.owners_dir
    with contextlib.closing(SandboxOwners(owners, "gw-other")) as other:
        own = other.make(record.sandbox)
        theirs = replace(record, gateway="gw-other", epoch=own.epoch)
        with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as store:
            await store.commit(SESSIONS.put(theirs))
        async with restartable.open() as engine:
            assert engine.list_sessions(OWNER) == []
            assert _kept(restartable)[cell.id] == theirs
            assert record.sandbox in await restartable.machine.survivors()
            assert (place / "transcript").exists()


def _damage(restartable: RestartableEngine, kind: str) -> None:
    """One field of all records of a kind has a type that it cannot have."""
    with contextlib.closing(sqlite3.connect(restartable.directory / "engine.sqlite", isolation_level=None)) as file:
        file.execute("UPDATE records SET body=json_set(body, '$.owner', 7) WHERE kind=?", (kind,))


async def test_a_damaged_record_of_a_run_or_a_terminal_is_left_out_and_the_server_starts(
    runtime: Runtime, restartable: RestartableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with restartable.open() as engine:
        await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id="s"))
        await engine.start_run(OWNER, "s", Command(what=Shell("sleep 600")))
        await engine.create_terminal(OWNER, "s", argv=["sleep", "600"])
    for kind in ("run", "terminal"):
        _damage(restartable, kind)
    async with restartable.open() as engine:
        assert engine.list_runs(OWNER, "s") == []
        assert engine.get_session(OWNER, "s").phase is Phase.ACTIVE
        await engine.destroy_session(OWNER, "s")
    assert [record.getMessage() for record in caplog.records].count("a damaged record is left out") == 2


async def test_a_damaged_record_of_a_session_stops_a_start_that_has_changed_nothing(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        for name in ("fine", "damaged"):
            await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id=name))
    made = frozenset(restartable.machine.made)
    owners = restartable.machine.owners_dir / "sandboxes"
    held = {path.name: path.read_bytes() for path in owners.iterdir() if path.name in made}
    _damage(restartable, "session")
    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"damaged .session .*owner: int.*running sandboxes will then be removed"):
            async with restartable.open():
                pass
    assert await restartable.machine.survivors() == made
    assert {path.name: path.read_bytes() for path in owners.iterdir() if path.name in made} == held


async def test_sessions_are_taken_back_where_that_cannot_be_written_down(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id="kept"))

    async def refuse(_write: Write) -> None:
        raise StoreFailed("the disk is full")

    usual, restartable.at_writing = restartable.at_writing, refuse
    async with restartable.open() as engine:
        restartable.at_writing = usual
        assert engine.get_session(OWNER, "kept").phase is Phase.ACTIVE
        await engine.destroy_session(OWNER, "kept")
    assert _kept(restartable) == {}


async def test_a_change_that_is_on_its_way_is_not_undone_by_the_next_one(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        spec = SessionSpec(runtime=runtime, session_id="s", labels={"task": "42"})
        await engine.create_session(OWNER, spec)
        written, may_go_on = asyncio.Event(), asyncio.Event()

        async def hold(write: Write) -> None:
            restartable.at_writing = usual
            await write()
            written.set()
            await may_go_on.wait()

        usual, restartable.at_writing = restartable.at_writing, hold
        relabelling = asyncio.ensure_future(engine.update_labels(OWNER, "s", set={"task": "43"}))
        await written.wait()
        assert engine.get_session(OWNER, "s").labels == {"task": "42"}, "not in force yet"
        await engine.extend_session(OWNER, "s", idle_timeout_s=77.0)
        kept = _kept(restartable)["s"]
        assert (kept.spec.labels, kept.idle_timeout_s) == ({"task": "43"}, 77.0)
        may_go_on.set()
        await relabelling
        await engine.destroy_session(OWNER, "s")


async def test_a_change_that_could_not_be_written_does_not_come_along_with_the_next_one(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        spec = SessionSpec(runtime=runtime, session_id="s", labels={"task": "42"})
        await engine.create_session(OWNER, spec)
        is_asked, may_fail = asyncio.Event(), asyncio.Event()

        async def fail(_write: Write) -> None:
            restartable.at_writing = usual
            is_asked.set()
            await may_fail.wait()
            raise StoreFailed("the disk is full")

        usual, restartable.at_writing = restartable.at_writing, fail
        relabelling = asyncio.ensure_future(engine.update_labels(OWNER, "s", set={"task": "43"}))
        await is_asked.wait()
        await engine.extend_session(OWNER, "s", idle_timeout_s=77.0)
        may_fail.set()
        with pytest.raises(StoreFailed):
            await relabelling
        assert engine.get_session(OWNER, "s").labels == {"task": "42"}
        await engine.extend_session(OWNER, "s", ttl_s=500.0)  # written after all that came before
        kept = _kept(restartable)["s"]
        assert (kept.spec.labels, kept.idle_timeout_s) == ({"task": "42"}, 77.0)
        await engine.destroy_session(OWNER, "s")


async def test_what_is_left_of_a_session_that_came_to_nothing_is_not_its_successors(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    spec = SessionSpec(runtime=runtime, session_id="same-name")
    async with restartable.open() as engine:
        written, may_go_on = asyncio.Event(), asyncio.Event()

        async def hold(write: Write) -> None:
            restartable.at_writing = usual
            await write()
            written.set()
            await may_go_on.wait()

        usual, restartable.at_writing = restartable.at_writing, hold
        creating = asyncio.ensure_future(engine.create_session(OWNER, spec))
        await written.wait()
        first = _kept(restartable)["same-name"]
        await engine.destroy_session(OWNER, "same-name")
        assert _kept(restartable) == {}, "the control"
        second = await engine.create_session(OWNER, spec)
        may_go_on.set()
        with pytest.raises(SandboxLost):
            await creating
        assert first.sandbox != second.sandbox
        assert first.sandbox not in await restartable.machine.survivors()
    async with restartable.open() as engine:
        assert engine.get_session(OWNER, "same-name").sandbox == second.sandbox
        await engine.destroy_session(OWNER, "same-name")


async def test_a_use_that_cannot_be_written_down_keeps_no_session_from_expiring(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.engine.engine._REMEMBER_USE_EVERY_S", 0.01)
    async with restartable.open(reap_every_s=0.01) as engine:
        await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id="s"))
        is_refused = asyncio.Event()

        async def refuse(_write: Write) -> None:
            is_refused.set()
            raise StoreFailed("the disk is full")

        usual, restartable.at_writing = restartable.at_writing, refuse
        await Cell(engine, "s").sh("true")
        async with asyncio.timeout(_PATIENCE_S):
            await is_refused.wait()
            restartable.at_writing = usual
            await engine.extend_session(OWNER, "s", ttl_s=0.01)
            while engine.list_sessions(OWNER):
                await asyncio.sleep(0.01)
