"""One caller cannot make the agent hold more than its bounds, whatever it goes on with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from a2a.types import Message, Part, Role, TaskState

from k8e.a2a.agent import Agent
from k8e.a2a.records import HISTORY_MESSAGES, Record
from k8e.a2a.shelf import Bounds
from k8e.client.aio import AsyncSandboxClient
from k8e.client.discovery import Target
from k8e.client.mcp import McpCalls
from k8e.http_visitor import Visitor

INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    """Prose is answered without a server, and here is none."""
    target = Target(endpoint="127.0.0.1:1", found="a test")
    client, mcp = AsyncSandboxClient(target=target), McpCalls(target)
    try:
        yield Visitor(client=client, identity="uid:1", owner="uid:1", role="user", mcp=mcp)
    finally:
        await mcp.aclose()
        await client.close()


def prose(size: int = 9) -> Message:
    return Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x" * size)])


def held(agent: Agent, *records: Record) -> list[Record]:
    return [each for each in records if agent.shelf.find(each.owner, each.task_id) is each]


async def test_a_task_that_is_gone_on_with_makes_older_ones_go(visitor: Visitor) -> None:
    async with Agent.open(bounds=Bounds(owner_bytes=40_000)) as agent:
        first, second = agent.begin(visitor, prose(10_000)), agent.begin(visitor, prose())
        for kept in ([first, second], [first, second], [second], []):
            assert agent.go_on(visitor, second, prose(12_000)) == ""
            assert held(agent, first, second) == kept


async def test_a_task_takes_only_so_many_messages_and_another_one_goes_on(visitor: Visitor) -> None:
    async with Agent.open() as agent:
        full = agent.begin(visitor, prose())
        for _ in range(HISTORY_MESSAGES - 1):
            assert agent.go_on(visitor, full, prose()) == ""
        before = full.size()
        assert "contextId" in agent.go_on(visitor, full, prose())
        assert (full.size(), full.state) == (before, INPUT_REQUIRED)
        other = agent.begin(visitor, prose())
        assert agent.go_on(visitor, other, prose()) == ""
