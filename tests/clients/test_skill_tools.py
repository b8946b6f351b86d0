"""The skill's six scenarios by its tools: an agent with the official client, started by the entry that was installed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ImageContent, TextContent

from k8e.client import AsyncSandboxClient, SandboxClient
from tests.support.commands import Run
from tests.support.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Call = Callable[..., Awaitable[Any]]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
async def agent(k8e: Run, environ: dict[str, str], server: Server) -> AsyncIterator[Client]:
    """Configured by the command, and started as an agent would: from its own directory, with its own environment."""
    assert k8e("sandbox-install-skill", "cursor").returncode == 0
    config = json.loads((Path(environ["HOME"]) / ".cursor" / "mcp.json").read_text())
    entry = config["mcpServers"]["k8e-sandbox"]
    around = {"PATH": environ["PATH"], "HOME": environ["HOME"], "K8E_DATA_DIR": str(server.data_dir)}
    started = StdioServerParameters(command=entry["command"], args=entry["args"], env=around, cwd="/")
    async with Client(started) as client:
        yield client


@pytest.fixture
def call(agent: Client) -> Call:
    """A tool's structured answer."""

    async def call(name: str, **arguments: object) -> Any:
        done = await agent.call_tool(name, arguments)
        assert not done.is_error, done.content
        return done.structured_content

    return call


async def test_hello(call: Call) -> None:
    said = await call("sandbox_run", code="print('hello')", language="python")
    assert (said["stdout"], said["exit_code"]) == ("hello\n", 0)


async def test_install_then_use(call: Call) -> None:
    first = await call("sandbox_run", code="pip install -q humanize", language="bash", timeout=120)
    assert first["exit_code"] == 0, first
    code = "import humanize; print(humanize.naturalsize(10**9))"
    used = await call("sandbox_run", code=code, language="python")
    assert (used["stdout"], used["session_id"]) == ("1.0 GB\n", first["session_id"])
    more = await call("sandbox_pip_install", session_id=first["session_id"], packages=["idna"])
    assert more["exit_code"] == 0


async def test_a_script_and_its_data_in_and_the_result_out(call: Call, agent: Client) -> None:
    sid = (await call("sandbox_create_session"))["session_id"]
    code = "import csv; print(sum(float(r['price']) for r in csv.DictReader(open('prices.csv'))))"
    await call("sandbox_write_file", session_id=sid, path="/workspace/sum.py", content=code)
    await call("sandbox_write_file", session_id=sid, path="prices.csv", content="name,price\ntea,2.5\ncake,4\n")
    done = await call("sandbox_exec", session_id=sid, command="python3 sum.py >result.txt")
    assert done["exit_code"] == 0
    [read] = (await agent.call_tool("sandbox_read_file", {"session_id": sid, "path": "result.txt"})).content
    assert isinstance(read, TextContent)
    assert read.text == "6.5\n"
    listed = await call("sandbox_list_files", session_id=sid)
    assert {Path(each["path"]).name for each in listed["files"]} == {"sum.py", "prices.csv", "result.txt"}
    await call("sandbox_write_file", session_id=sid, path="plot.png", content=PNG, encoding="base64")
    plot = (await agent.call_tool("sandbox_read_file", {"session_id": sid, "path": "plot.png"})).content
    assert any(isinstance(each, ImageContent) and each.mime_type == "image/png" for each in plot)
    assert (await call("sandbox_destroy_session", session_id=sid))["ok"] is True


async def test_a_session_that_may_reach_one_host(call: Call) -> None:
    sid = (await call("sandbox_create_session", allowed_hosts=["api.example.com"]))["session_id"]
    refused = await call("sandbox_exec", session_id=sid, command="curl -sS https://elsewhere.example")
    assert [each["host"] for each in refused["egress_denied"]] == ["elsewhere.example"]
    allowed = await call("sandbox_exec", session_id=sid, command="curl -sS https://api.example.com")
    assert not [each for each in allowed.get("egress_denied", ()) if "list" in each["reason"]]


async def test_two_sub_agents_at_once_on_the_same_files(call: Call) -> None:
    parent = (await call("sandbox_create_session"))["session_id"]
    children = [(await call("sandbox_run_subagent", parent_session_id=parent))["session_id"] for _ in range(2)]
    # Each waits for the other's file, so they end only if they run at once and see each other's work.
    commands = [
        f"echo from-{mine} >{mine}; until [ -s {other} ]; do sleep 0.05; done; cat {other}"
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_exec(call, child, command), name=child)
            for child, command in zip(children, commands, strict=True)
        ]
    assert [task.result() for task in tasks] == ["from-b\n", "from-a\n"]
    await call("sandbox_destroy_session", session_id=parent)


async def _exec(call: Call, session_id: str, command: str) -> str:
    done = await call("sandbox_exec", session_id=session_id, command=command, timeout=60)
    return str(done["stdout"])


async def test_a_person_decides(call: Call, server: Server, client: SandboxClient) -> None:
    sid = (await call("sandbox_create_session"))["session_id"]
    asked = await call("sandbox_confirm_action", session_id=sid, action="delete the old backups")
    assert asked["approved"] is False
    assert asked["approval_id"] in asked["approve_with"]
    key = client.create_api_key("skill-tools", role="approver", owner=client.whoami().owner)
    try:
        target = dataclasses.replace(server.target(), api_key=key.key)
        async with AsyncSandboxClient(target=target) as person:
            await person.approve(asked["approval_id"], reason="go ahead")
        told = await call("sandbox_confirm_action", session_id=sid, approval_id=asked["approval_id"])
    finally:
        client.delete_api_key("skill-tools")
    assert (told["approved"], told["decided_by"], told["reason"]) == (True, "key:skill-tools", "go ahead")
