"""Decisions find their session, are bounded in memory and in the event log, and say what a command was denied."""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine.egress import Egress, EgressCounts
from k8e.engine.events import EventLog
from k8e.engine.settings import KeptLimits
from k8e.model import Decision, Denial, OwnerId, SandboxId, SessionId, Verdict

_OWNER, _SESSION, _BOX = OwnerId("uid:0"), SessionId("sess"), SandboxId("sb")


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
async def events(tmp_path: Path) -> AsyncIterator[EventLog]:
    log = EventLog(tmp_path / "events.sqlite", KeptLimits())
    yield log
    log.close()


async def _settled() -> None:
    """Nothing is on its way."""


@pytest.fixture
def egress(events: EventLog, clock: _Clock) -> Egress:
    held = Egress(events, _settled, clock=clock)
    held.hold(_BOX, _OWNER, _SESSION)
    return held


def _denied(name: str, port: int = 443, *, sandbox: SandboxId = _BOX, count: int = 1) -> Decision:
    return Decision(
        at=1.0, sandbox=sandbox, verdict=Verdict.DENIED, protocol="tcp", name=name, port=port, reason="no", count=count
    )


def _closed(name: str) -> Decision:
    return Decision(
        at=1.0, sandbox=_BOX, verdict=Verdict.CLOSED, protocol="tls", name=name, bytes_sent=3, bytes_received=5
    )


async def _kinds(events: EventLog) -> collections.Counter[str]:
    return collections.Counter(json.loads(row)["event"] for row in (await events.read(_OWNER, _SESSION, 10_000)).events)


async def test_what_was_denied_since_a_moment_is_told_once_each(egress: Egress) -> None:
    egress.heard(_denied("before.example"))
    mark = egress.mark(_BOX)
    for name, port in (("a.example", 443), ("a.example", 443), ("a.example", 80), ("b.example", 443)):
        egress.heard(_denied(name, port))
    egress.heard(_closed("fine.example"))
    told = await egress.denials_since(_BOX, mark)
    assert told == (Denial("a.example", 443, "no"), Denial("a.example", 80, "no"), Denial("b.example", 443, "no"))
    assert await egress.denials_since(_BOX, egress.mark(_BOX)) == ()


async def test_a_decision_that_is_still_on_its_way_is_waited_for(events: EventLog, clock: _Clock) -> None:
    queue: asyncio.Queue[Decision] = asyncio.Queue()

    async def decisions() -> AsyncIterator[Decision]:
        while True:
            yield await queue.get()
            queue.task_done()

    egress = Egress(events, queue.join, clock=clock)
    egress.hold(_BOX, _OWNER, _SESSION)
    async with asyncio.TaskGroup() as group:
        queue.put_nowait(_denied("late.example"))
        listening = group.create_task(egress.listen(decisions))
        assert await egress.denials_since(_BOX, 0) == (Denial("late.example", 443, "no"),)
        listening.cancel()


async def test_a_flood_is_told_in_part(egress: Egress) -> None:
    for number in range(5000):
        egress.heard(_denied(f"h{number}.example"))
    assert len(await egress.denials_since(_BOX, 0)) == 20
    assert len([each async for each in egress.follow(_BOX)]) == 1000
    newest = [each async for each in egress.follow(_BOX, limit=2)]
    assert [each.name for each in newest] == ["h4998.example", "h4999.example"]


async def test_the_event_log_is_bounded_and_says_what_it_left_out(
    egress: Egress, events: EventLog, clock: _Clock
) -> None:
    for _ in range(300):
        egress.heard(_denied("a.example", count=2))
    assert await _kinds(events) == {"egress.denied": 200}
    egress.tend()
    assert (await _kinds(events))["egress.summary"] == 0
    clock.now += 61
    egress.tend()
    egress.heard(_closed("a.example"))
    assert await _kinds(events) == {"egress.denied": 200, "egress.summary": 1, "egress.closed": 1}
    summary = [json.loads(row) for row in (await events.read(_OWNER, _SESSION, 10)).events][-2]
    assert summary["not_written"] == {"denied": 200}


async def test_the_end_of_a_session_ends_its_followers_and_writes_the_rest(egress: Egress, events: EventLog) -> None:
    for _ in range(201):
        egress.heard(_denied("a.example"))
    seen: list[Decision] = []

    async def follow() -> None:
        seen.extend([decision async for decision in egress.follow(_BOX, limit=1, onwards=True)])

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        await asyncio.sleep(0)
        egress.heard(_closed("b.example"))
        egress.drop(_BOX)
    assert [each.name for each in seen] == ["a.example", "b.example"]
    assert (await _kinds(events))["egress.summary"] == 1
    assert [each async for each in egress.follow(_BOX, onwards=True)] == []


async def test_what_nobody_holds_is_only_counted(egress: Egress, events: EventLog) -> None:
    egress.heard(_denied("a.example", sandbox=SandboxId("other"), count=3))
    egress.heard(_closed("b.example"))
    assert egress.counts() == EgressCounts(denied=3, closed=1, bytes_sent=3, bytes_received=5, unclaimed=3)
    assert await _kinds(events) == {"egress.closed": 1}


async def test_a_follower_that_sleeps_loses_the_oldest(egress: Egress) -> None:
    following = egress.follow(_BOX, onwards=True)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    for number in range(3000):
        egress.heard(_denied(f"h{number}.example"))
    egress.drop(_BOX)
    names = [(await first).name, *[each.name async for each in following]]
    assert names[-1] == "h2999.example"
    assert len(names) <= 1001
