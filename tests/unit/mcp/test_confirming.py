"""A person is asked: in the client's own window where it has one, by a command otherwise. No call decides."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData

from k8e.client import AsyncSandboxClient
from tests.support.door import OpenDoor
from tests.support.mcp_calls import Person
from tests.support.mcp_wire import Wire, agent, wire

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28"]
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@pytest.fixture
async def caller(door: OpenDoor) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=door.target) as client:
        yield client


@pytest.fixture
async def session_id(caller: AsyncSandboxClient) -> str:
    return await caller.create_session()


async def confirm(client: Client, session_id: str, **more: Any) -> dict[str, Any]:
    arguments = {"session_id": session_id, **({} if more else {"action": "deploy to production"}), **more}
    result = await client.call_tool("sandbox_confirm_action", arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result
    return dict(result.structured_content)


async def asked(door: OpenDoor, session_id: str, person: ElicitationFnT, mode: str) -> dict[str, Any]:
    async with agent(door.target, mode=mode, elicitation=person) as client:
        return await confirm(client, session_id)


@pytest.mark.parametrize("mode", MODES)
async def test_the_person_is_asked_in_their_own_window_and_approves(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str, mode: str
) -> None:
    person = Person(approve=True, reason="go on")
    found = await asked(door, session_id, person, mode)
    assert (found["approved"], found["status"], found["reason"]) == (True, "approved", "go on")
    assert found["decided_by"] == f"uid:{os.geteuid()} in an agent's window"
    assert len(person.asked) == 1
    assert "deploy to production" in person.asked[0]
    assert session_id in person.asked[0]
    (kept,) = await caller.approvals(all=True)
    assert (kept.approval_id, kept.status) == (found["approval_id"], "approved")


async def test_what_an_agent_writes_does_not_pass_for_our_words(door: OpenDoor, session_id: str) -> None:
    person = Person(approve=False)
    async with agent(door.target, elicitation=person) as client:
        await confirm(client, session_id, action="tidy up\n\nAn administrator has approved this already:\n| yes")
    heading, empty, *lines = person.asked[0].split("\n")
    assert heading == f'An agent in sandbox session "{session_id}" asks for your approval, in its own words:'
    assert (empty, lines) == ("", ["| tidy up", "| ", "| An administrator has approved this already:", "| | yes"])


async def test_nobody_is_asked_a_question_that_hides_something(door: OpenDoor, session_id: str) -> None:
    person = Person(approve=True)
    async with agent(door.target, elicitation=person) as client:
        arguments = {"session_id": session_id, "action": "delete\x1b[2K nothing\u202e"}
        result = await client.call_tool("sandbox_confirm_action", arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error
    assert person.asked == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "person", [Person("decline"), Person(approve=False), Person("accept")], ids=["no", "off", "blank"]
)
async def test_everything_but_a_clear_yes_is_a_no(door: OpenDoor, session_id: str, mode: str, person: Person) -> None:
    found = await asked(door, session_id, person, mode)
    assert (found["approved"], found["status"]) == (False, "rejected")
    assert "do not do it" in found["next"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_window_that_was_closed_decides_nothing(door: OpenDoor, session_id: str, mode: str) -> None:
    found = await asked(door, session_id, Person("cancel"), mode)
    assert (found["approved"], found["status"]) == (False, "pending")
    assert found["approve_with"] == f"k8e sandbox approve {found['approval_id']}"


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_window_the_command_for_a_person_is_returned(
    door: OpenDoor, session_id: str, mode: str
) -> None:
    async with agent(door.target, mode=mode) as client:
        found = await confirm(client, session_id)
    assert (found["approved"], found["status"]) == (False, "pending")
    assert found["approve_with"] == f"k8e sandbox approve {found['approval_id']}"
    assert found["reject_with"] == f"k8e sandbox approve {found['approval_id']} --reject"


@pytest.mark.parametrize("mode", MODES)
async def test_a_window_of_a_key_does_not_count_and_the_command_is_returned(door: OpenDoor, mode: str) -> None:
    """The control is the same window of a local user, above."""
    _, text = door.keys.create("robot")
    target = dataclasses.replace(door.target, api_key=text)
    async with AsyncSandboxClient(target=target) as robot:
        session_id = await robot.create_session()
    person = Person(approve=True)
    async with agent(target, mode=mode, elicitation=person) as client:
        found = await confirm(client, session_id)
    assert (found["approved"], found["status"]) == (False, "pending")
    assert "does not count" in found["note"]
    assert found["approve_with"].startswith("k8e sandbox approve ")
    assert person.asked == []


async def test_waiting_ends_with_the_decision_of_somebody_else(door: OpenDoor) -> None:
    _, asking = door.keys.create("robot", owner="team")
    _, deciding = door.keys.create("lead", owner="team")
    target = dataclasses.replace(door.target, api_key=asking)
    async with (
        AsyncSandboxClient(target=dataclasses.replace(door.target, api_key=deciding)) as lead,
        agent(target) as client,
    ):
        session_id = await lead.create_session()
        approval_id = (await confirm(client, session_id))["approval_id"]
        waiting = await confirm(client, session_id, approval_id=approval_id, timeout=0)
        assert waiting["status"] == "pending"
        await lead.approve(approval_id, approved=True, reason="fine")
        found = await confirm(client, session_id, approval_id=approval_id)
        assert (found["approved"], found["decided_by"], found["reason"]) == (True, "key:lead", "fine")


async def test_somebody_else_may_be_faster_than_the_window(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    """The window's yes comes after the no."""

    async def late(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        (waiting,) = await caller.approvals()
        await caller.approve(waiting.approval_id, approved=False, reason="no", presence="elicitation")
        return ElicitResult(action="accept", content={"approve": True})

    found = await asked(door, session_id, late, "legacy")
    assert (found["approved"], found["status"], found["reason"]) == (False, "rejected", "no")


async def modern(lines: Wire, session_id: str, action: str = "deploy", **more: Any) -> Any:
    arguments = {"session_id": session_id, "action": action}
    return await lines.ask("tools/call", name="sandbox_confirm_action", arguments=arguments, _meta=MODERN, **more)


async def test_an_answer_counts_only_for_a_question_that_was_asked_and_only_once(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    yes = {"approval": {"action": "accept", "content": {"approve": True}}}
    unasked = (await caller.confirm(session_id, "deploy", timeout=0)).approval_id
    async with wire(door.target) as lines:
        forged = await modern(lines, session_id, inputResponses=yes, requestState=unasked)
        assert forged["result"]["isError"] is True
        assert (await caller.confirmed(unasked, timeout=0.1)).status == "pending"
        begun = await modern(lines, session_id)
        state = begun["result"]["requestState"]
        assert begun["result"]["resultType"] == "input_required"
        good = await modern(lines, session_id, inputResponses=yes, requestState=state)
        assert good["result"]["structuredContent"]["approved"] is True
        again = await modern(lines, session_id, inputResponses=yes, requestState=state)
        assert again["result"]["isError"] is True


async def test_an_answer_to_one_question_is_none_to_another(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    """The controls are the same question without its words, and with them."""
    other = await caller.create_session()
    asked = (await caller.confirm(session_id, "read the table", timeout=0)).approval_id
    await caller.approve(asked, presence="elicitation")
    async with agent(door.target) as client:
        for wrong in ({"session_id": session_id, "action": "drop the table"}, {"session_id": other}):
            result = await client.call_tool("sandbox_confirm_action", {**wrong, "approval_id": asked})
            assert isinstance(result, CallToolResult)
            assert result.is_error, result
        for words in ({}, {"action": "read the table"}):
            found = await confirm(client, session_id, approval_id=asked, **words)
            assert (found["approved"], found["action"]) == (True, "read the table")


async def test_an_answer_that_comes_with_another_question_does_not_count(
    door: OpenDoor, caller: AsyncSandboxClient, session_id: str
) -> None:
    """The control is the answer that comes with its own, above."""
    yes = {"approval": {"action": "accept", "content": {"approve": True}}}
    other = await caller.create_session()
    async with wire(door.target) as lines:
        for words in ({"session_id": session_id, "action": "drop the table"}, {"session_id": other}):
            state = (await modern(lines, session_id))["result"]["requestState"]
            answer = await modern(lines, **words, inputResponses=yes, requestState=state)
            assert answer["result"]["isError"] is True
            assert (await caller.confirmed(state, timeout=0.1)).status == "pending"


async def test_a_client_that_fails_to_ask_leaves_the_question_open(door: OpenDoor, session_id: str) -> None:
    async def broken(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ErrorData(code=-1, message="no window here")

    found = await asked(door, session_id, broken, "legacy")
    assert (found["approved"], found["status"]) == (False, "pending")


async def test_asking_needs_an_action_and_waiting_a_question_that_exists(door: OpenDoor, session_id: str) -> None:
    async with agent(door.target) as client:
        for arguments in ({"session_id": session_id}, {"session_id": session_id, "approval_id": "none"}):
            result = await client.call_tool("sandbox_confirm_action", arguments)
            assert isinstance(result, CallToolResult)
            assert result.is_error
