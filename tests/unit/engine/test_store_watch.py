"""Whoever watches records hears of every change in order, and a slow watcher costs no more than a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8e.engine.records import RUNS, RunRecord
from k8e.engine.store import Change, Changed, Store, Watch
from k8e.engine.store.watch import MOST_PENDING
from k8e.engine.workspaces import WORKSPACES, WorkspaceView
from k8e.errors import Conflict, Exhausted
from k8e.model import OwnerId, RunId, SessionId, WorkspaceId

pytestmark = pytest.mark.anyio

OWNER = OwnerId("uid:0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "engine.sqlite")
    yield store
    store.close()


def _workspace(name: str, disk_bytes: int = 1) -> WorkspaceView:
    return WorkspaceView(
        owner=OWNER, tenant=name, workspace=WorkspaceId(f"ws-{name}"), disk_bytes=disk_bytes, last_used=0.0
    )


def _put(name: str, disk_bytes: int = 1) -> Change:
    return WORKSPACES.put(_workspace(name, disk_bytes))


def _told(changed: Changed[WorkspaceView]) -> tuple[str, int | None]:
    return changed.key[1], changed.record.disk_bytes if changed.record else None


async def _all(watch: Watch[WorkspaceView], store: Store) -> list[Changed[WorkspaceView]]:
    """What waits now."""
    await store.commit(_put("the end"))
    found: list[Changed[WorkspaceView]] = []
    async for changed in watch:
        if changed.key[1] == "the end":
            return found
        found.append(changed)
    raise AssertionError("the watch has ended")


async def test_a_change_is_there_to_be_heard_when_its_commit_returns(store: Store) -> None:
    await store.commit(_put("before"))
    with store.watch(WORKSPACES) as watch:
        version = await store.commit(_put("a"))
        changed = await anext(watch)
        assert changed == Changed("workspace", (OWNER, "a"), version, _workspace("a"))
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done()
        await store.commit(_put("b"))
        assert _told(await waiting) == ("b", 1)


async def test_what_did_not_happen_is_not_told(store: Store) -> None:
    version = await store.commit(_put("a"))
    run = RunRecord(run_id=RunId("r"), owner=OWNER, session_id=SessionId("s"), started_at=1.0, command="")
    with store.watch(WORKSPACES) as watch:
        with pytest.raises(Conflict):
            await store.commit(_put("b"), WORKSPACES.put(_workspace("a"), if_version=version + 1))
        await store.commit(WORKSPACES.replace(_workspace("b")), WORKSPACES.delete(OWNER, "c"), RUNS.put(run))
        assert await _all(watch, store) == []
        await store.commit(WORKSPACES.replace(_workspace("a", 2)), WORKSPACES.delete_under(OWNER))
        assert [_told(each) for each in await _all(watch, store)] == [("a", None)], "the control"


async def test_of_several_changes_of_one_record_a_slow_watcher_hears_the_last_and_in_order(store: Store) -> None:
    with store.watch(WORKSPACES) as watch:
        for change in (_put("a"), _put("b"), _put("c"), _put("a", 2), WORKSPACES.delete(OWNER, "b"), _put("a", 3)):
            await store.commit(change)
        heard = await _all(watch, store)
    assert [_told(each) for each in heard] == [("c", 1), ("b", None), ("a", 3)]
    assert [each.version for each in heard] == sorted(each.version for each in heard)


async def test_a_watcher_that_is_too_far_behind_is_told_to_load_again(store: Store) -> None:
    with store.watch(WORKSPACES) as patient, store.watch(WORKSPACES) as slow:
        for _ in range(3):
            for first in range(0, MOST_PENDING, 1024):
                await store.commit(*(_put(f"{number}") for number in range(first, first + 1024)))
        assert len(store.load(WORKSPACES)) == MOST_PENDING
        assert len([await anext(patient) for _ in range(MOST_PENDING)]) == MOST_PENDING, "the control: just so many"
        await store.commit(_put("one more"))
        assert _told(await anext(patient)) == ("one more", 1)
        with pytest.raises(Exhausted, match="load again"):
            await anext(slow)
    with store.watch(WORKSPACES) as again:
        await store.commit(_put("afterwards"))
        assert _told(await anext(again)) == ("afterwards", 1)


async def test_a_watch_that_was_left_hears_nothing_more(store: Store) -> None:
    with store.watch(WORKSPACES) as watch:
        await store.commit(_put("a"))
    await store.commit(_put("b"))
    assert [each async for each in watch] == []


async def test_whoever_waits_hears_that_the_store_is_closed(tmp_path: Path) -> None:
    store = Store(tmp_path / "engine.sqlite")
    waiting = asyncio.ensure_future(anext(store.watch(WORKSPACES)))
    await asyncio.sleep(0)
    store.close()
    with pytest.raises(StopAsyncIteration):
        async with asyncio.timeout(60):
            await waiting


_STEPS = st.lists(st.tuples(st.sampled_from(["put", "replace", "delete", "read"]), st.sampled_from("abc")), max_size=20)


@given(_STEPS, _STEPS)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_what_was_loaded_and_what_was_heard_since_is_what_there_is(
    store: Store, before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    """However often the watcher looks, and whatever is written between its beginning to watch and its loading."""
    size = 0

    async def write(step: str, name: str) -> None:
        nonlocal size
        size += 1
        record = _workspace(name, size)
        changes = {"put": WORKSPACES.put(record), "replace": WORKSPACES.replace(record)}
        await store.commit(changes.get(step, WORKSPACES.delete(OWNER, name)))

    with store.watch(WORKSPACES) as watch:
        for step, name in before:
            await write(step, name)
        known = {WORKSPACES.key(each.record): (each.version, each.record) for each in store.load(WORKSPACES)}
        loaded = dict(known)
        for step, name in [*after, ("read", "")]:
            if step != "read":
                await write(step, name)
                continue
            for changed in await _all(watch, store):
                if changed.key in loaded and changed.version <= loaded[changed.key][0]:
                    continue
                known.pop(changed.key, None)
                if changed.record is not None:
                    known[changed.key] = (changed.version, changed.record)
        there = {WORKSPACES.key(each.record): (each.version, each.record) for each in store.load(WORKSPACES)}
        there.pop((OWNER, "the end"), None)
        known.pop((OWNER, "the end"), None)
        assert known == there
