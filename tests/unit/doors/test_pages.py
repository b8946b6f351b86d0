"""Lists in pages as callers see them: over the whole list nothing is missing and nothing comes twice."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client import AsyncSandboxClient
from k8e.client.channels import open_channel
from k8e.doors.service.approvals import after, token_of
from k8e.engine.approvals import Approval, in_order
from k8e.errors import InvalidSpec
from k8e.model import ApprovalId, ApprovalStatus, OwnerId, SandboxId, SessionId
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio

COUNT = 20


@pytest.fixture
async def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenDoor]:
    # So small that every list has several pages.
    monkeypatch.setattr("k8e.doors.service.paging.PAGE_BYTES", 400)
    async with open_door(tmp_path) as door:
        yield door


@pytest.fixture
async def client(door: OpenDoor) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=door.target) as client:
        yield client


@pytest.fixture
async def stub(door: OpenDoor) -> AsyncIterator[SandboxStub]:
    async with open_channel(door.target) as channel:
        yield SandboxStub(channel)


async def test_sessions(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    made = [await client.create_session(session_id=f"s-{number:02}") for number in range(COUNT)]
    first = await stub.ListSessions(pb.ListSessionsRequest())
    assert 0 < len(first.sessions) < COUNT
    assert first.next_page_token
    assert sorted(each.session_id for each in await client.sessions()) == made


async def test_sessions_that_a_label_selects(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    made = [
        await client.create_session(session_id=f"s-{number:02}", labels={"even": "yes"} if number % 2 == 0 else None)
        for number in range(COUNT)
    ]
    first = await stub.ListSessions(pb.ListSessionsRequest(labels=["even=yes"]))
    assert 0 < len(first.sessions) < COUNT // 2
    assert first.next_page_token
    assert [each.session_id for each in await client.sessions(labels={"even": "yes"})] == made[::2]
    # What changes between two pages neither hides nor repeats the others.
    await client.update_labels(first.sessions[-1].session_id, remove=["even"])
    request = pb.ListSessionsRequest(labels=["even"], page_token=first.next_page_token)
    second = await stub.ListSessions(request)
    shown = [each.session_id for each in (*first.sessions, *second.sessions)]
    assert shown == made[::2][: len(shown)]


async def test_files(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    session_id = await client.create_session()
    for number in range(COUNT):
        await client.write_file(session_id, f"file-{number:02}", "x")
    first = await stub.ListFiles(pb.ListFilesRequest(session_id=session_id))
    assert 0 < len(first.files) < COUNT
    paths = [f"/workspace/file-{number:02}" for number in range(COUNT)]
    assert [each.path for each in await client.list_files(session_id)] == paths
    assert [each.path for each in await client.list_directory(session_id)] == paths


@pytest.mark.parametrize("limit", [1, 3, COUNT - 1, COUNT, COUNT + 1])
async def test_the_first_of_many_files(client: AsyncSandboxClient, limit: int) -> None:
    session_id = await client.create_session()
    for number in range(COUNT):
        await client.write_file(session_id, f"file-{number:02}", "x")
    assert len(await client.list_files(session_id, limit=limit)) == min(limit, COUNT)


async def test_runs(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    session_id = await client.create_session()
    made = [await client.start_run(session_id, f"true {number}") for number in range(COUNT)]
    first = await stub.ListRuns(pb.ListRunsRequest(session_id=session_id))
    assert 0 < len(first.runs) < COUNT
    found = await client.runs(session_id)
    assert [each.run_id for each in found] == made
    assert [each.command for each in found] == [f"true {number}" for number in range(COUNT)]


async def test_approvals(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    session_id = await client.create_session()
    for number in range(COUNT):
        await stub.ConfirmAction(pb.ConfirmActionRequest(session_id=session_id, action=f"do {number}"))
    first = await stub.ListApprovals(pb.ListApprovalsRequest())
    assert 0 < len(first.approvals) < COUNT
    assert [each.action for each in await client.approvals()] == [f"do {number}" for number in range(COUNT)]


async def test_events(client: AsyncSandboxClient, door: OpenDoor, stub: SandboxStub) -> None:
    session_id = await client.create_session()
    seen = await client.events(session_id, limit=1000)
    newest = await stub.GetEvents(pb.GetEventsRequest(session_id=session_id, limit=1))
    older = await stub.GetEvents(
        pb.GetEventsRequest(session_id=session_id, limit=1000, page_token=newest.next_page_token)
    )
    assert len(seen) == len(newest.events) + (len(older.events) if newest.next_page_token else 0)


def _approval(number: int, status: ApprovalStatus = ApprovalStatus.PENDING) -> Approval:
    return Approval(
        approval_id=ApprovalId(f"a{number}"),
        owner=OwnerId("uid:1"),
        session_id=SessionId("s"),
        sandbox=SandboxId("sb"),
        action="x",
        asked_by="uid:1",
        asked_at=1000.0 + number,
        expires_at=5000.0,
        status=status,
    )


def test_a_question_that_is_decided_between_two_pages_hides_none_of_the_others() -> None:
    asked = [_approval(number) for number in range(6)]
    token = token_of(in_order(asked)[2])
    asked[2] = dataclasses.replace(asked[2], status=ApprovalStatus.APPROVED)
    rest = [each.approval_id for each in after(in_order(asked), token)]
    assert rest == ["a3", "a4", "a5", "a2"]
    del asked[2]
    assert [each.approval_id for each in after(in_order(asked), token)] == ["a3", "a4", "a5"]


def test_questions_of_one_moment_are_told_apart_and_what_is_over_comes_newest_first() -> None:
    same = [dataclasses.replace(_approval(number), asked_at=1000.0) for number in range(4)]
    over = [_approval(number, ApprovalStatus.REJECTED) for number in range(4, 7)]
    whole = in_order([*over, *same])
    assert [each.approval_id for each in whole] == ["a0", "a1", "a2", "a3", "a6", "a5", "a4"]
    for number, each in enumerate(whole, start=1):
        assert list(after(whole, token_of(each))) == whole[number:]


@pytest.mark.parametrize("token", [b"x", b"0 1.5", b"0 x a", b"x 1.5 a", b"0 1.5 a b", b"\xff"])
def test_a_place_that_is_none_is_refused(token: bytes) -> None:
    with pytest.raises(InvalidSpec, match="page_token"):
        after([], token)


async def test_execs(client: AsyncSandboxClient, stub: SandboxStub) -> None:
    session_id = await client.create_session()
    made = [await client.start_run(session_id, "exec sleep 600") for _ in range(COUNT)]
    first = await stub.ListExecs(pb.ListExecsRequest(session_id=session_id))
    assert 0 < len(first.execs) < COUNT
    assert first.next_page_token
    assert [each.exec_id for each in await client.execs(session_id)] == made
