"""The store of approvals: who may decide, what ends a question, and what a restart keeps."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.engine.approvals import APPROVALS, MAX_TEXT_BYTES, Approval, Approvals, check_text
from k8e.engine.settings import Quotas
from k8e.engine.store import Store
from k8e.errors import Conflict, Denied, Exhausted, InvalidSpec, K8eError, NotFound, StoreFailed
from k8e.model import ApprovalId, ApprovalStatus, OwnerId, SandboxId, SessionId
from k8e.tasks import Tasks
from tests.support import former_files
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio

ALICE, MALLORY = OwnerId("uid:1000"), OwnerId("uid:666")
AGENT, PERSON, OTHER = "uid:1000", "key:phone", "key:tablet"
SESSION, SANDBOX = SessionId("s"), SandboxId("sb-1")
VALID_S = 300.0

Opener = Callable[[], AbstractAsyncContextManager[Approvals]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reopened(tmp_path: Path, clock: Clock) -> Opener:
    """The same file, opened again as after a restart."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Approvals]:
        async with Tasks() as tasks:
            quotas = Quotas(approvals_per_session=3, approvals=5)
            approvals = Approvals(tmp_path / "approvals.sqlite", tasks, quotas, valid_s=VALID_S, clock=clock)
            yield approvals
        approvals.close()

    return opened


@pytest.fixture
async def approvals(reopened: Opener) -> AsyncIterator[Approvals]:
    async with reopened() as opened:
        yield opened


async def _ask(approvals: Approvals, action: str = "drop the table", session: str = SESSION) -> Approval:
    return await approvals.ask(ALICE, SessionId(session), SANDBOX, asked_by=AGENT, action=action)


async def _decide(approvals: Approvals, asked: Approval, by: str = PERSON, *, approved: bool = True) -> Approval:
    return await approvals.decide(ALICE, asked.approval_id, decided_by=by, approved=approved, reason="because")


@pytest.mark.parametrize(("approved", "status"), [(True, "approved"), (False, "rejected")])
async def test_a_waiter_gets_the_answer_and_who_gave_it(approvals: Approvals, approved: bool, status: str) -> None:
    asked = await _ask(approvals)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(approvals.wait(ALICE, asked.approval_id), name="waiter")
        await asyncio.sleep(0)
        await _decide(approvals, asked, approved=approved)
    heard = waiting.result()
    assert (heard.status, heard.decided_by, heard.reason) == (status, PERSON, "because")


async def test_a_question_is_shown_once_it_would_outlive_the_server(approvals: Approvals, tmp_path: Path) -> None:
    """And counts from the beginning: many at once do not go beyond the bound."""

    def written() -> set[str]:
        file = Store(tmp_path / "approvals.sqlite", "approvals")
        with contextlib.closing(file):
            return {stored.record.approval_id for stored in file.load(APPROVALS)}

    asking = [asyncio.ensure_future(_ask(approvals, session=f"s{number}")) for number in range(6)]
    while not all(each.done() for each in asking):
        assert {each.approval_id for each in approvals.of(ALICE, finished=False)} <= written()
        await asyncio.sleep(0)
    assert len(approvals.of(ALICE, finished=False)) == 5
    assert [type(each.exception()) for each in asking if each.exception()] == [Exhausted]


async def test_the_one_who_asks_cannot_decide_and_another_can(approvals: Approvals) -> None:
    asked = await _ask(approvals)
    for approved in (True, False):
        with pytest.raises(Denied, match="cannot decide"):
            await _decide(approvals, asked, AGENT, approved=approved)
    assert approvals.find(ALICE, asked.approval_id).is_pending
    assert (await _decide(approvals, asked)).status is ApprovalStatus.APPROVED
    with pytest.raises(Denied):
        await _decide(approvals, asked, AGENT)


async def test_an_answer_is_final_and_repeating_it_changes_nothing(approvals: Approvals) -> None:
    asked = await _ask(approvals)
    first = await _decide(approvals, asked)
    assert await _decide(approvals, asked) == first
    for by, approved in ((PERSON, False), (OTHER, True), (OTHER, False)):
        with pytest.raises(Conflict, match="already approved by key:phone"):
            await _decide(approvals, asked, by, approved=approved)
    assert approvals.find(ALICE, asked.approval_id) == first


async def test_of_two_that_decide_at_once_exactly_one_wins(approvals: Approvals) -> None:
    for _ in range(3):
        asked = await _ask(approvals)

        async def answer(by: str, approved: bool, asked: Approval = asked) -> Approval | K8eError:
            try:
                return await _decide(approvals, asked, by, approved=approved)
            except K8eError as error:
                return error

        async with asyncio.TaskGroup() as group:
            both = [
                group.create_task(answer(PERSON, approved=True), name="yes"),
                group.create_task(answer(OTHER, approved=False), name="no"),
            ]
        won = [task.result() for task in both if isinstance(task.result(), Approval)]
        assert won == [approvals.find(ALICE, asked.approval_id)]
        assert [type(task.result()) for task in both if task.result() not in won] == [Conflict]


async def test_another_owners_question_does_not_exist(approvals: Approvals) -> None:
    asked = await _ask(approvals)
    assert approvals.of(MALLORY, finished=True) == []
    with pytest.raises(NotFound):
        await approvals.decide(MALLORY, asked.approval_id, decided_by=PERSON, approved=True, reason="")
    with pytest.raises(NotFound):
        await approvals.wait(MALLORY, asked.approval_id)
    assert approvals.of(ALICE, finished=False) == [asked]


async def test_a_question_expires_and_nobody_can_answer_it_then(approvals: Approvals, clock: Clock) -> None:
    asked, in_time = await _ask(approvals, "late"), await _ask(approvals, "in time")
    clock.now += VALID_S - 1
    assert (await _decide(approvals, in_time)).status is ApprovalStatus.APPROVED
    clock.now += 1
    assert (await approvals.wait(ALICE, asked.approval_id)).status is ApprovalStatus.EXPIRED
    with pytest.raises(Conflict, match="expired: ask for it again"):
        await _decide(approvals, asked)
    assert approvals.find(ALICE, in_time.approval_id).status is ApprovalStatus.APPROVED


async def test_a_waiter_with_little_time_gets_the_question_as_it_stands(approvals: Approvals) -> None:
    asked = await _ask(approvals)
    assert (await approvals.wait(ALICE, asked.approval_id, timeout_s=0)).is_pending
    waiting = asyncio.wait_for(approvals.wait(ALICE, asked.approval_id), 0.01)
    with pytest.raises(TimeoutError):
        await waiting
    assert approvals.find(ALICE, asked.approval_id).is_pending, "a waiter that leaves, leaves the question"


async def test_the_end_of_a_session_ends_its_questions_only(approvals: Approvals) -> None:
    asked = await _ask(approvals)
    other = await approvals.ask(ALICE, SESSION, SandboxId("sb-2"), asked_by=AGENT, action="of the next session")
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(approvals.wait(ALICE, asked.approval_id), name="waiter")
        await asyncio.sleep(0)
        approvals.end(ALICE, SANDBOX)
    assert waiting.result().status is ApprovalStatus.EXPIRED
    with pytest.raises(Conflict, match="expired"):
        await _decide(approvals, asked)
    assert (await _decide(approvals, other)).status is ApprovalStatus.APPROVED


async def test_an_answer_that_comes_with_the_sessions_end_is_told_to_nobody(reopened: Opener, tmp_path: Path) -> None:
    async with reopened() as approvals:
        asked = await _ask(approvals)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(approvals.wait(ALICE, asked.approval_id), name="waiter")
            with contextlib.closing(sqlite3.connect(tmp_path / "approvals.sqlite", isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")  # the answer waits for the file
                deciding = group.create_task(_outcome(_decide(approvals, asked)), name="decider")
                for _ in range(10):
                    await asyncio.sleep(0)
                approvals.end(ALICE, SANDBOX)
                other.execute("ROLLBACK")
    assert isinstance(deciding.result(), Conflict)
    assert waiting.result().status is ApprovalStatus.EXPIRED
    async with reopened() as after:
        assert after.find(ALICE, asked.approval_id).status is ApprovalStatus.EXPIRED


async def test_an_answer_that_somebody_else_has_written_is_never_overwritten(
    approvals: Approvals, tmp_path: Path
) -> None:
    """Of several servers over one store only one answers a question, whichever was asked to."""
    taken, gone, free = await _ask(approvals), await _ask(approvals), await _ask(approvals)
    other = Store(tmp_path / "approvals.sqlite", "approvals")
    stored = other.get(APPROVALS, ALICE, taken.approval_id)
    assert stored is not None
    rejected = stored.record.decided(OTHER, approved=False, reason="no", now=stored.record.asked_at)
    await other.commit(APPROVALS.put(rejected, if_version=stored.version), APPROVALS.delete(ALICE, gone.approval_id))
    waiting = asyncio.ensure_future(approvals.wait(ALICE, taken.approval_id))
    with pytest.raises(Conflict, match=f"already rejected by {OTHER}"):
        await _decide(approvals, taken)
    assert await waiting == rejected, "and whoever waits is told"
    assert approvals.find(ALICE, taken.approval_id) == rejected
    with pytest.raises(NotFound):
        await _decide(approvals, gone)
    assert (await _decide(approvals, free)).status is ApprovalStatus.APPROVED, "the control"
    kept = {each.record.approval_id: each.record.status for each in other.load(APPROVALS)}
    assert kept == {taken.approval_id: ApprovalStatus.REJECTED, free.approval_id: ApprovalStatus.APPROVED}
    other.close()


async def test_a_restart_keeps_questions_and_answers(reopened: Opener) -> None:
    async with reopened() as before:
        open_one, answered, orphan = await _ask(before, "a"), await _ask(before, "b"), await _ask(before, "c")
        await _decide(before, answered, approved=False)
        lost = SandboxId("sb-lost")
        orphan = await before.ask(ALICE, SessionId("gone"), lost, asked_by=AGENT, action="d")
    async with reopened() as after:
        after.keep_only({SANDBOX})
        assert after.find(ALICE, answered.approval_id).status is ApprovalStatus.REJECTED
        assert after.find(ALICE, orphan.approval_id).status is ApprovalStatus.EXPIRED
        with pytest.raises(Denied):
            await _decide(after, open_one, AGENT)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(after.wait(ALICE, open_one.approval_id), name="waiter")
            await asyncio.sleep(0)
            await _decide(after, open_one)
        assert waiting.result().status is ApprovalStatus.APPROVED


async def test_unanswered_questions_are_bounded_and_the_refusal_says_until_when(
    approvals: Approvals, clock: Clock
) -> None:
    asked = [await _ask(approvals) for _ in range(3)]
    clock.now += 100
    with pytest.raises(Exhausted, match="retry in 200 s") as refused:
        await _ask(approvals)
    assert refused.value.retry_after_s == pytest.approx(200)
    for _ in range(2):
        await _ask(approvals, session="another")
    with pytest.raises(Exhausted):
        await _ask(approvals, session="a third")
    await _decide(approvals, asked[0])
    await _ask(approvals, session="a third")


async def test_the_history_is_bounded(approvals: Approvals, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.engine.approvals._HISTORY", 4)
    for number in range(8):
        clock.now += 1
        await _decide(approvals, await _ask(approvals, f"number {number}"))
    last = await _ask(approvals, "the last")
    kept = approvals.of(ALICE, finished=True)
    assert [each.action for each in kept] == ["the last", "number 7", "number 6", "number 5", "number 4"]
    assert approvals.of(ALICE, finished=False) == [last]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "say what"),
        (" \n", "say what"),
        ("x" * (MAX_TEXT_BYTES + 1), "longer than"),
        ("nul\0", "cannot be seen"),
        ("\x1b[2Jls", "cannot be seen"),
        ("rm -rf / \rls", "cannot be seen"),
        ("\u202egnihton\u202c", "cannot be seen"),
        ("zero\u200bwidth", "cannot be seen"),
        ("half\udcff", "cannot be seen"),
        ("hangul\u3164filler", r"cannot be seen: U\+3164, HANGUL FILLER; leave it out"),
        ("blank\u2800braille", "cannot be seen"),
        ("joined\u034fletters", "cannot be seen"),
        ("red\ufe0f", "cannot be seen"),
        ("tagged\U000e0041", "cannot be seen"),
        ("heap" + "\u0300" * 3, "cannot be seen"),
        ("a\n" * 60, "more than 60 lines"),
    ],
)
async def test_text_that_shows_something_else_is_refused(approvals: Approvals, text: str, complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=f"action: .*{complaint}"):
        await _ask(approvals, text)
    assert (await _ask(approvals, "naïve — 削除\n\tline two")).is_pending


@given(st.text(max_size=50))
def test_accepted_text_has_only_characters_that_are_seen(text: str) -> None:
    try:
        check_text(text, field="action")
    except InvalidSpec:
        return
    assert text.encode().decode() == text
    assert not any(char < " " for char in text if char not in "\n\t")


@given(st.floats(0, 1000), st.sampled_from([AGENT, PERSON, OTHER]), st.booleans())
def test_whatever_the_time_the_asker_never_decides(now: float, by: str, approved: bool) -> None:
    asked = Approval(
        approval_id=ApprovalId("a"),
        owner=ALICE,
        session_id=SESSION,
        sandbox=SANDBOX,
        action="x",
        asked_by=AGENT,
        asked_at=0,
        expires_at=500,
    )
    refusal = Denied if by == AGENT else Conflict if now >= 500 else None
    if refusal is None:
        assert asked.decided(by, approved=approved, reason="", now=now).decided_by == by != AGENT
        return
    with pytest.raises(refusal):
        asked.decided(by, approved=approved, reason="", now=now)


async def _outcome(work: Coroutine[Any, Any, Approval]) -> Approval | K8eError:
    try:
        return await work
    except K8eError as error:
        return error


async def test_what_a_call_waits_for_ends_with_the_server_and_what_was_asked_by_hand_does_not(reopened: Opener) -> None:
    async with reopened() as approvals:
        gate = await approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write", is_gate=True)
        by_hand = await approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write")
        done = await approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write", is_gate=True)
        await approvals.decide(ALICE, done.approval_id, decided_by=PERSON, approved=True, reason="")
    async with reopened() as approvals:
        assert approvals.find(ALICE, gate.approval_id).is_pending
        approvals.keep_only({SANDBOX})
        assert approvals.find(ALICE, gate.approval_id).status is ApprovalStatus.EXPIRED
        assert approvals.find(ALICE, by_hand.approval_id).is_pending
        assert approvals.find(ALICE, done.approval_id).status is ApprovalStatus.APPROVED


async def test_a_question_that_is_withdrawn_has_ended_unless_it_is_answered(approvals: Approvals) -> None:
    asked = [await approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write") for _ in range(2)]
    await approvals.decide(ALICE, asked[1].approval_id, decided_by=PERSON, approved=True, reason="")
    assert approvals.withdraw(asked[0]).status is ApprovalStatus.EXPIRED
    assert approvals.withdraw(asked[1]).status is ApprovalStatus.APPROVED
    with pytest.raises(Conflict, match="expired"):
        await approvals.decide(ALICE, asked[0].approval_id, decided_by=PERSON, approved=True, reason="")


async def test_a_caller_that_leaves_before_its_question_is_on_disk_leaves_none(reopened: Opener) -> None:
    async with reopened() as approvals:
        asking = asyncio.ensure_future(approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write"))
        await asyncio.sleep(0)
        assert (asking.done(), approvals.of(ALICE, finished=True)) == (False, []), "on its way, and shown to nobody yet"
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not approvals.of(ALICE, finished=True)
    async with reopened() as approvals:
        assert not approvals.of(ALICE, finished=True)
        await approvals.ask(ALICE, SESSION, SANDBOX, asked_by=AGENT, action="write")


@pytest.mark.parametrize("format", range(1, len(former_files.APPROVALS) + 1))
async def test_a_file_of_the_former_format_is_taken_over_and_its_questions_can_be_answered(
    tmp_path: Path, reopened: Opener, format: int
) -> None:
    former_files.write(tmp_path / "approvals.sqlite", former_files.APPROVALS[:format])
    async with reopened() as approvals:
        approvals.keep_only({SANDBOX})
        found = approvals.find(ALICE, "a")
        assert found == Approval(
            approval_id=ApprovalId("a"),
            owner=ALICE,
            session_id=SESSION,
            sandbox=SANDBOX,
            action="drop",
            asked_by=AGENT,
            asked_at=1000.0,
            expires_at=1300.0,
        )
        assert (await _decide(approvals, found)).status is ApprovalStatus.APPROVED
    async with reopened() as approvals:
        assert approvals.find(ALICE, "a").decided_by == PERSON
        answered = [each for each in approvals.of(ALICE, finished=True) if each.approval_id == "b"]
    if format > 1:
        (old,) = answered
        assert (old.action, old.asked_at, old.status, old.is_gate) == (
            "two\nlines",
            900.5,
            ApprovalStatus.REJECTED,
            True,
        )
        assert (old.decided_by, old.reason, old.decided_at) == ("key:phone", "no", 950.25)


async def test_a_damaged_answer_is_left_out_and_a_damaged_question_stops_the_start(
    reopened: Opener, tmp_path: Path
) -> None:
    def damage(asked: Approval) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "approvals.sqlite", isolation_level=None)) as file:
            damaged = "UPDATE records SET body=json_set(body, '$.asked_at', '') WHERE key LIKE ?"
            file.execute(damaged, (f"%{asked.approval_id}%",))

    async with reopened() as approvals:
        answered, waiting = await _ask(approvals), await _ask(approvals)
        await _decide(approvals, answered)
    damage(answered)
    async with reopened() as approvals:
        assert approvals.of(ALICE, finished=True) == [waiting]
        with pytest.raises(NotFound):
            approvals.find(ALICE, answered.approval_id)
    damage(waiting)
    refusal = f"damaged .approval .*{waiting.approval_id}.*restore it from a backup"
    with (
        contextlib.closing(Store(tmp_path / "approvals.sqlite", "approvals")) as file,
        pytest.raises(StoreFailed, match=refusal),
    ):
        file.load(APPROVALS)
