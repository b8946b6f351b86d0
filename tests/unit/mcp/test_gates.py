"""A call that waits at a gate of its session: the person is asked in their window, or the client hears for what it waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from k8e.client import Approval, AsyncSandboxClient, Gates, SecretRef
from k8e.doors.service.call import Call
from k8e.doors.service.presence import Presence
from k8e.errors import StoreFailed
from k8e.mcp import gates, person
from k8e.mcp.calls import ToolCall
from k8e.model import Gates as ServerGates
from tests.support.door import OpenDoor, open_door
from tests.support.mcp_calls import Person
from tests.support.mcp_wire import agent, first_text

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(person, "PAUSE_S", 0.01)


@pytest.fixture
async def caller(door: OpenDoor) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=door.target) as client:
        yield client


@pytest.fixture
async def session_id(caller: AsyncSandboxClient) -> str:
    return await caller.create_session(gates=Gates(commands=("deploy",)))


class Ear:
    """What a client hears as progress."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.put_nowait(message or "")


async def called(client: Client, tool: str, hears: Ear | None = None, **arguments: Any) -> CallToolResult:
    async with asyncio.timeout(PATIENCE_S):
        result = await client.call_tool(tool, arguments, progress_callback=hears)
    assert isinstance(result, CallToolResult)
    return result


async def deployed(
    client: Client, session_id: str, command: str = "echo deploy", hears: Ear | None = None
) -> CallToolResult:
    return await called(client, "sandbox_exec", hears, session_id=session_id, command=command)


async def question(asked_by: AsyncSandboxClient) -> Approval:
    """The one that waits, as soon as it does."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await asked_by.approvals()):
            await asyncio.sleep(0.01)
    return found[0]


async def test_the_person_is_asked_in_their_window_and_the_call_goes_on(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    person = Person(approve=True)
    async with agent(door.target, elicitation=person) as client:
        result = await deployed(client, session_id)
        assert result.structured_content["stdout"] == "deploy\n"
        await deployed(client, session_id, "echo something else")
    (question,) = person.asked
    assert "echo deploy" in question
    (kept,) = await caller.approvals(all=True)
    assert (kept.status, kept.decided_by) == ("approved", f"uid:{os.geteuid()} in an agent's window")


async def test_a_no_in_the_window_refuses_the_call(door: OpenDoor, session_id: str) -> None:
    async with agent(door.target, elicitation=Person("decline")) as client:
        result = await deployed(client, session_id)
    assert result.is_error
    assert "stdout" not in first_text(result.content)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_without_a_window_the_client_hears_for_what_it_waits_until_somebody_decides(
    door: OpenDoor, mode: str
) -> None:
    _, robot = door.keys.create("robot", owner="team")
    _, lead = door.keys.create("lead", owner="team")
    ear = Ear()
    async with (
        AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=lead)) as deciding,
        agent(dataclasses.replace(door.target, api_key=robot), mode=mode) as client,
        asyncio.TaskGroup() as group,
    ):
        session_id = await deciding.create_session(gates=Gates(commands=("deploy",)))
        calling = group.create_task(deployed(client, session_id, hears=ear), name="call")
        told = await ear.heard.get()
        (waiting,) = await deciding.approvals()
        assert f"k8e sandbox approve {waiting.approval_id}" in told
        await deciding.approve(waiting.approval_id)
        assert (await calling).structured_content["stdout"] == "deploy\n"


async def test_a_question_is_shown_once_however_many_calls_wait_in_the_session(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    """Two calls wait, so there are two questions, and each is shown once."""
    person = Person(approve=True)
    async with agent(door.target, elicitation=person) as client, asyncio.TaskGroup() as group:
        for number in (1, 2):
            group.create_task(deployed(client, session_id, f"echo deploy {number}"), name=f"call {number}")
    assert len(person.asked) == len(await caller.approvals(all=True)) == 2


async def test_the_person_is_asked_about_a_tenants_session_that_is_to_be_made(data_dir: Path) -> None:
    """It has no name yet."""
    person = Person(approve=True)
    async with (
        open_door(data_dir, gates=ServerGates(egress=True)) as door,
        agent(door.target, elicitation=person) as client,
    ):
        made = await called(client, "sandbox_create_session", tenant_id="team", allowed_hosts=["new.example"])
        assert made.structured_content["allowed_hosts"] == ["new.example"]
    (shown,) = person.asked
    assert 'create a session of tenant "team" that may reach "new.example"' in shown


async def test_the_person_is_asked_about_the_own_session_of_a_tenant(
    door: OpenDoor, caller: AsyncSandboxClient
) -> None:
    person = Person(approve=True)
    await caller.create_session(tenant_id="team", gates=Gates(commands=("deploy",)))
    async with agent(door.target, tenant_id="team", elicitation=person) as client:
        result = await called(client, "sandbox_run", code="echo deploy")
    assert result.structured_content["stdout"] == "deploy\n"
    assert len(person.asked) == 1


async def test_the_person_is_asked_about_a_sub_agent(data_dir: Path) -> None:
    token = SecretRef(secret_name="token", key="value", env_var="TOKEN")
    person = Person(approve=True)
    async with (
        open_door(data_dir, gates=ServerGates(secrets=True)) as door,
        AsyncSandboxClient(target=door.target) as caller,
        agent(door.target, elicitation=person) as client,
        asyncio.TaskGroup() as group,
    ):
        await caller.set_secret("token", "x")
        _, other = door.keys.create("other", owner=f"uid:{os.geteuid()}")
        async with AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=other)) as asking:
            creating = group.create_task(asking.create_session(secret_refs=[token]), name="create")
            await caller.approve((await question(caller)).approval_id)
            parent = await creating
        made = await called(client, "sandbox_run_subagent", parent_session_id=parent)
    assert made.structured_content["session_id"]
    (shown,) = person.asked
    assert 'sees the value of "token:value" as "TOKEN"' in shown
    assert parent in shown


async def test_what_somebody_else_asked_in_the_session_is_not_shown(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    _, other = door.keys.create("other", owner=f"uid:{os.geteuid()}")
    person = Person(approve=True)
    async with (
        AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=other)) as stranger,
        agent(door.target, elicitation=person) as client,
        asyncio.TaskGroup() as group,
    ):
        theirs = group.create_task(stranger.exec(session_id, "echo deploy theirs"), name="theirs")
        waiting = await question(caller)
        result = await deployed(client, session_id, "echo deploy ours")
        assert result.structured_content["stdout"] == "deploy ours\n"
        await caller.approve(waiting.approval_id)
        await theirs
    (asked,) = person.asked
    assert "echo deploy ours" in asked


async def test_a_key_is_shown_no_window_whose_answer_cannot_count(door: OpenDoor) -> None:
    """The control is the same window of a local user, above."""
    _, robot = door.keys.create("robot", owner="team")
    _, lead = door.keys.create("lead", owner="team")
    person, ear = Person(approve=True), Ear()
    async with (
        AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=lead)) as deciding,
        agent(dataclasses.replace(door.target, api_key=robot), elicitation=person) as client,
        asyncio.TaskGroup() as group,
    ):
        session_id = await deciding.create_session(gates=Gates(commands=("deploy",)))
        calling = group.create_task(deployed(client, session_id, hears=ear), name="call")
        assert "does not count" in await ear.heard.get()
        await deciding.approve((await question(deciding)).approval_id)
        assert (await calling).structured_content["stdout"] == "deploy\n"
    assert person.asked == []


async def test_where_windows_do_not_count_the_client_hears_it_and_shows_no_more(tmp_path: Path) -> None:
    person, ear = Person(approve=True), Ear()
    async with (
        open_door(tmp_path, presence=Presence(allowed=False)) as door,
        AsyncSandboxClient(target=door.target) as caller,
        agent(door.target, elicitation=person) as client,
        asyncio.TaskGroup() as group,
    ):
        _, lead = door.keys.create("lead", owner=f"uid:{os.geteuid()}")
        session_id = await caller.create_session(gates=Gates(commands=("deploy",)))
        async with AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=lead)) as deciding:
            for number in (1, 2):
                calling = group.create_task(deployed(client, session_id, hears=ear), name=f"call {number}")
                while "--approve-in-person" not in await ear.heard.get():
                    pass
                await deciding.approve((await question(deciding)).approval_id)
                assert (await calling).structured_content["stdout"] == "deploy\n"
    assert len(person.asked) == 1


async def test_a_reason_with_characters_that_cannot_be_seen_does_not_cost_the_answer(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    person = Person(approve=True, reason="fine \U0001f469\u200d\U0001f4bb\r\nreally\x1b[2K")
    async with agent(door.target, elicitation=person) as client:
        assert (await deployed(client, session_id)).structured_content["stdout"] == "deploy\n"
    (kept,) = await caller.approvals(all=True)
    assert kept.reason == "fine \U0001f469\U0001f4bb\nreally[2K"


async def test_what_fails_once_costs_neither_the_question_nor_the_answer(tmp_path: Path) -> None:
    failing = {"ListApprovals", "ApproveAction"}

    @contextlib.contextmanager
    def step(name: str, call: Call, request: object) -> Iterator[None]:
        if name in failing:
            failing.remove(name)
            raise StoreFailed("the disk is slow")
        yield

    person = Person(approve=True)
    async with (
        open_door(tmp_path, steps=(step,)) as door,
        AsyncSandboxClient(target=door.target) as caller,
        agent(door.target, elicitation=person) as client,
    ):
        session_id = await caller.create_session(gates=Gates(commands=("deploy",)))
        assert (await deployed(client, session_id)).structured_content["stdout"] == "deploy\n"
    assert failing == set()
    assert len(person.asked) == 1


async def test_a_defect_in_the_looking_does_not_cost_the_call(
    door: OpenDoor, session_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_about, defects = gates.is_about, [KeyError("a defect")]

    def once_broken(call: ToolCall, approval: Approval) -> bool:
        if defects:
            raise defects.pop()
        return is_about(call, approval)

    monkeypatch.setattr(gates, "is_about", once_broken)
    async with agent(door.target, elicitation=Person(approve=True)) as client:
        assert (await deployed(client, session_id)).structured_content["stdout"] == "deploy\n"
    assert "a defect" in caplog.text


async def test_a_window_that_closes_with_its_call_leaves_the_question_to_the_next(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is that of another call of the same user; the first window is never answered."""
    # However busy the machine is: it is not too old for the calls that come after it.
    monkeypatch.setattr(gates, "SLACK_S", 3600)
    asked = list[str]()
    until = "until test -e {}; do sleep 0.01; done"

    async def first_away(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        asked.append(params.message)
        if len(asked) == 1:
            await caller.write_file(session_id, "one", "")
            await asyncio.Event().wait()
        return ElicitResult(action="accept", content={"approve": True})

    async with agent(door.target, elicitation=first_away) as client, asyncio.TaskGroup() as group:
        waiting = group.create_task(caller.exec(session_id, "echo deploy"), name="at the gate")
        await question(caller)
        await deployed(client, session_id, until.format("one"))
        beside = group.create_task(deployed(client, session_id, until.format("two")), name="beside")
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).stdout == "deploy\n"
        await caller.write_file(session_id, "two", "")
        await beside
    assert len(asked) == 2
