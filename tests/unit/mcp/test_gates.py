"""A call that waits at a gate of its session: the person is asked in their window, or the client hears for what it waits."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from k8e.client import AsyncSandboxClient, Gates
from k8e.mcp import gates
from tests.support.door import OpenDoor
from tests.support.mcp_wire import agent, first_text

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "FIRST_LOOK_S", 0.01)


@pytest.fixture
async def caller(door: OpenDoor) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=door.target) as client:
        yield client


@pytest.fixture
async def session_id(caller: AsyncSandboxClient) -> str:
    return await caller.create_session(gates=Gates(commands=("deploy",)))


class Person:
    def __init__(self, action: Any = "accept", **content: Any) -> None:
        self._answer = ElicitResult(action=action, content=content or None)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        return self._answer


async def deployed(client: Client, session_id: str, command: str = "echo deploy", **more: Any) -> CallToolResult:
    arguments = {"session_id": session_id, "command": command}
    result = await client.call_tool("sandbox_exec", arguments, **more)
    assert isinstance(result, CallToolResult)
    return result


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
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.put_nowait(message or "")

    async with (
        AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=lead)) as deciding,
        agent(dataclasses.replace(door.target, api_key=robot), mode=mode) as client,
        asyncio.TaskGroup() as group,
    ):
        session_id = await deciding.create_session(gates=Gates(commands=("deploy",)))
        calling = group.create_task(deployed(client, session_id, progress_callback=hear), name="call")
        told = await heard.get()
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
