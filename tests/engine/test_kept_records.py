"""What the engine keeps of sessions is what it has said last, and what somebody else has written is not overwritten."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from k8e.engine.records import SESSIONS, SessionRecord
from k8e.engine.store import Store
from k8e.errors import SandboxLost, StoreFailed
from k8e.lifecycle import Phase
from k8e.model import Runtime, SessionSpec
from tests.support.cells import OWNER
from tests.support.restartable_engine import RestartableEngine, Write

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0


def _kept(restartable: RestartableEngine) -> dict[str, SessionRecord]:
    """What the next server would find."""
    with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as store:
        return {stored.record.session_id: stored.record for stored in store.load(SESSIONS)}


async def test_a_session_that_another_gateway_has_taken_over_meanwhile_is_left_to_it(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        for name in ("taken", "mine"):
            await engine.create_session(OWNER, SessionSpec(runtime=runtime, session_id=name))
    before = _kept(restartable)
    theirs = replace(before["taken"], gateway="gw-other", epoch=before["taken"].epoch + 5)
    has_taken = False

    async def take_first(write: Write) -> None:
        nonlocal has_taken
        if not has_taken:
            has_taken = True
            with contextlib.closing(Store(restartable.directory / "engine.sqlite")) as other:
                await other.commit(SESSIONS.put(theirs))
        await write()

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
    monkeypatch.setattr("k8e.engine.engine._REMEMBER_USE_EVERY_S", 0.0)
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
