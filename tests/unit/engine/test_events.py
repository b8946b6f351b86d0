"""The event log: bounded in bytes for each session and owner while it grows, and read in pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine.events import EventLog
from k8e.engine.settings import KeptLimits
from k8e.model import OwnerId, SessionId
from tests.support import former_files

pytestmark = pytest.mark.anyio

OWNER, OTHER = OwnerId("uid:1"), OwnerId("uid:2")
HERE, THERE = SessionId("sess-here"), SessionId("sess-there")
KEPT = KeptLimits(events_per_session=20_000, events_per_owner=50_000)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    events = EventLog(tmp_path / "events.sqlite", KEPT)
    yield events
    events.close()


async def _all(log: EventLog, session: SessionId, owner: OwnerId = OWNER) -> list[dict[str, object]]:
    found = [json.loads(text) for text in (await log.read(owner, session, 100_000)).events]
    assert len({each["seq"] for each in found}) == len(found)
    return found


async def test_what_a_session_leaves_is_bounded_while_it_grows(log: EventLog) -> None:
    log.add(OWNER, THERE, "kept")
    for number in range(2000):
        log.add(OWNER, HERE, "noise", number=number, text="x" * 100)
    found = await _all(log, HERE)
    size = sum(len(json.dumps(each)) for each in found)
    assert size <= KEPT.events_per_session * 1.5
    assert found[-1]["number"] == 1999, "the newest stay"
    assert [each["event"] for each in await _all(log, THERE)] == ["kept"], "another session loses nothing"


async def test_an_owner_with_many_sessions_is_bounded_and_takes_nothing_from_another(log: EventLog) -> None:
    log.add(OTHER, HERE, "kept")
    for number in range(200):
        for each in range(10):
            log.add(OWNER, f"sess-{number}", "noise", each=each, text="x" * 100)
        log.forget(OWNER, SessionId(f"sess-{number}"))
    found = [each for number in range(200) for each in await _all(log, SessionId(f"sess-{number}"))]
    assert 0 < sum(len(json.dumps(each)) for each in found) <= KEPT.events_per_owner * 1.5
    assert len(await _all(log, SessionId("sess-199"))) == 10, "the newest stay"
    assert [each["event"] for each in await _all(log, HERE, OTHER)] == ["kept"]


async def test_an_owner_with_many_sessions_that_live_is_bounded_too(log: EventLog) -> None:
    sessions = [SessionId(f"sess-{number}") for number in range(30)]
    for number in range(300):
        for session in sessions:
            log.add(OWNER, session, "noise", number=number, text="x" * 100)
    found = [each for session in sessions for each in await _all(log, session)]
    assert 0 < sum(len(json.dumps(each)) for each in found) <= KEPT.events_per_owner * 1.5


async def test_what_was_there_before_a_restart_counts(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    for _ in range(20):
        log = EventLog(path, KEPT)
        for number in range(100):
            log.add(OWNER, HERE, "noise", number=number, text="x" * 100)
        found = await _all(log, HERE)
        log.close()
        assert sum(len(json.dumps(each)) for each in found) <= KEPT.events_per_session * 1.5


async def test_a_file_that_an_earlier_version_wrote_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    former_files.write(path, former_files.EVENTS)
    log = EventLog(path, KEPT, clock=lambda: 2.0)
    log.add(OWNER, HERE, "more")
    assert await _all(log, HERE) == [
        {"seq": 1, "time": 1.5, "session_id": HERE, "event": "session.created", "warm": True},
        {"seq": 2, "time": 2.0, "session_id": HERE, "event": "more"},
    ]
    log.close()


async def test_one_long_event_is_cut_and_says_so(log: EventLog) -> None:
    log.add(OWNER, HERE, "hosts", allowed_hosts=["a" * 1000] * 256, why="asked")
    log.add(OWNER, HERE, "hosts", allowed_hosts=["a.example"])
    log.add(OWNER, HERE, "odd", **{f"name{number}": "x" * 500 for number in range(1000)})
    long, short, odd = await _all(log, HERE)
    assert long["cut"] is True
    assert long["why"] == "asked"
    assert len(json.dumps(long)) < 17_000
    assert short["allowed_hosts"] == ["a.example"]
    assert "cut" not in short
    assert odd["cut"] is True


async def test_pages_go_back_to_the_first_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.sqlite", KeptLimits(events_per_session=2**30, events_per_owner=2**30))
    for number in range(1000):
        log.add(OWNER, HERE, "noise", number=number, text="x" * 15_000)
    pages = [await log.read(OWNER, HERE, 10_000)]
    while pages[-1].before:
        pages.append(await log.read(OWNER, HERE, 10_000, before=pages[-1].before))
    assert len(pages) > 3
    assert all(sum(map(len, page.events)) <= 4 * 2**20 for page in pages)
    assert [json.loads(text)["number"] for page in reversed(pages) for text in page.events] == list(range(1000))
    few = await log.read(OWNER, HERE, 3)
    assert [json.loads(text)["number"] for text in few.events] == [997, 998, 999]
    assert few.before
    log.close()


async def test_what_long_names_cost_is_counted(tmp_path: Path) -> None:
    owner, session = OwnerId("key:" + "o" * 120), SessionId("s" * 128)
    kept = KeptLimits(events_per_session=200_000, events_per_owner=10**9)
    log = EventLog(tmp_path / "events.sqlite", kept)
    for _ in range(6000):
        log.add(owner, session, "noise")
    log.close()
    assert (tmp_path / "events.sqlite").stat().st_size < 1.5 * kept.events_per_session


async def test_others_have_their_turn_while_a_long_page_is_read(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.sqlite", KeptLimits())
    for _ in range(5000):
        log.add(OWNER, HERE, "noise")
    await log.read(OWNER, HERE, 1)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    found = await log.read(OWNER, HERE, 5000)
    beside.cancel()
    log.close()
    assert len(found.events) == 5000
    assert turns > 5000 // 64 // 2
