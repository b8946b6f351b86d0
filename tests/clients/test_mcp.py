"""MCP with real sandboxes behind it: the official client at the end of a stream of the real server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from mcp import Client
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from k8e.client import AsyncSandboxClient
from k8e.setup.provision import Provisioned
from tests.support.mcp_calls import called, fields, text, until
from tests.support.mcp_wire import Wire, agent, first_text, wire
from tests.support.servers import NO_POOL, Server

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("tidy")]

PLOT = """
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\\0" + bytes([x * 8, y * 8, 128] * 1)[:3] * 8 for y in range(8) for x in [y])
head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
open("/workspace/plot.png", "wb").write(
    b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
)
"""


@pytest.fixture(params=["legacy", "2026-07-28"])
async def mcp(server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with agent(server.target(), f"client-{request.param}", mode=request.param) as client:
        yield client


@pytest.fixture
async def one(server: Server) -> AsyncIterator[Client]:
    """Where the revision makes no difference."""
    async with agent(server.target(), "client-one") as client:
        yield client


@pytest.fixture
async def caller(server: Server) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(target=server.target()) as client:
        yield client


@pytest.fixture
def mortal(data_dir: Path, host: Provisioned, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that may die; a test may say for how long it waits for clients that were cut off."""
    server = Server(data_dir, *NO_POOL, "--mcp-grace", getattr(request, "param", "1"))
    server.start()
    yield server
    server.destroy()


async def commands(caller: AsyncSandboxClient, session_id: str) -> list[str]:
    return [each.comm for each in await caller.processes(session_id)]


async def test_a_program_runs_and_its_plot_can_be_looked_at(mcp: Client) -> None:
    ran = await fields(mcp, "sandbox_run", code=PLOT, language="python")
    assert ran["exit_code"] == 0, ran
    found = await called(mcp, "sandbox_read_file", session_id=ran["session_id"], path="/workspace/plot.png")
    picture = found.content[0]
    assert isinstance(picture, ImageContent)
    assert picture.mime_type == "image/png"
    assert base64.b64decode(picture.data).startswith(b"\x89PNG")
    listed = (await mcp.list_resources()).resources
    assert [each.name for each in listed] == ["plot.png"]
    (content,) = (await mcp.read_resource(listed[0].uri)).contents
    assert content.mime_type == "image/png"


async def test_files_and_packages_stay_between_calls_and_go_with_the_client(
    server: Server, caller: AsyncSandboxClient
) -> None:
    async with agent(server.target(), "passing-by") as client:
        first = await fields(client, "sandbox_run", code="x = 41; open('x', 'w').write(str(x))", language="python")
        again = await fields(client, "sandbox_run", code="print(int(open('x').read()) + 1)", language="python")
        assert (again["stdout"], again["session_id"]) == ("42\n", first["session_id"])
        assert first["session_id"] in [each.session_id for each in await caller.sessions()]
    assert first["session_id"] not in [each.session_id for each in await caller.sessions("all")]


async def test_a_host_off_the_list_is_denied_with_the_way_to_get_it_and_that_way_is_open(mcp: Client) -> None:
    ask = (
        "import socket\ntry:\n    socket.getaddrinfo('denied.example', 443)\nexcept OSError as error:\n    print(error)"
    )
    found = await fields(mcp, "sandbox_run", code=ask, language="python")
    assert [each["host"] for each in found["egress_denied"]] == ["denied.example"]
    assert 'allowed_hosts ["denied.example"]' in found["egress_fix"]
    made = await fields(mcp, "sandbox_create_session", allowed_hosts=["denied.example"])
    assert made["allowed_hosts"] == ["denied.example"]
    allowed = await fields(mcp, "sandbox_run", code=ask, language="python", session_id=made["session_id"])
    assert "egress_denied" not in allowed


async def test_tools_name_the_hosts_that_a_session_may_really_reach(mcp: Client) -> None:
    hosts = (await fields(mcp, "sandbox_create_session"))["allowed_hosts"]
    assert "github.com" in hosts
    tools = {each.name: each.description or "" for each in (await mcp.list_tools()).tools}
    assert all(host in tools["sandbox_run"] for host in hosts)
    assert (await fields(mcp, "sandbox_status"))["allowed_hosts"] == hosts


@pytest.mark.parametrize("tool", ["sandbox_exec", "sandbox_exec_stream"])
async def test_a_cancelled_call_ends_its_command_inside_the_sandbox(
    mcp: Client, caller: AsyncSandboxClient, tool: str
) -> None:
    session_id = (await fields(mcp, "sandbox_create_session"))["session_id"]

    async def runs() -> bool:
        return "sleep" in await commands(caller, session_id)

    async def is_over() -> bool:
        return not await runs()

    async with asyncio.TaskGroup() as group:
        asked = mcp.call_tool(tool, {"session_id": session_id, "command": "sleep 1000", "timeout": 0})
        calling = group.create_task(asked, name="call")
        await until(runs)
        calling.cancel()
    await until(is_over)
    assert (await fields(mcp, "sandbox_exec", session_id=session_id, command="echo alive"))["stdout"] == "alive\n"


async def test_ten_thousand_lines_stream_and_ten_megabytes_go_through(mcp: Client) -> None:
    session_id = (await fields(mcp, "sandbox_create_session"))["session_id"]
    shown: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        shown.append(message or "")

    arguments = {"session_id": session_id, "command": "seq 10000", "max_chars": 100_000}
    result = await mcp.call_tool("sandbox_exec_stream", arguments, progress_callback=hear)
    assert isinstance(result, CallToolResult)
    whole = "".join(f"{number}\n" for number in range(1, 10001))
    assert first_text(result.content) == whole
    assert whole.startswith("".join(shown)[:1000])
    large = "0123456789abcde\n" * (10 * 1024 * 1024 // 16)
    wrote = await fields(mcp, "sandbox_write_file", session_id=session_id, path="big", content=large)
    assert wrote["size"] == len(large)
    (read,) = (await mcp.read_resource(f"k8e://{session_id}/workspace/big")).contents
    assert isinstance(read, TextResourceContents)
    assert read.text == large


async def test_long_output_is_kept_in_the_sandbox_to_be_read_on_and_searched(mcp: Client) -> None:
    result = await called(mcp, "sandbox_run", code="seq 1000000")
    found = dict(result.structured_content)
    assert len(text(result)) < 26_000
    assert found["stdout"].startswith("1\n2\n3\n")
    assert found["stdout"].endswith("\n999999\n1000000\n")
    (link,) = [each for each in result.content if isinstance(each, ResourceLink)]
    assert link.size == 6_888_896
    page, following = (await mcp.read_resource(link.uri)).contents
    assert isinstance(page, TextResourceContents)
    shown = found["stdout"].partition("\n[…")[0] + page.text
    assert "".join(f"{number}\n" for number in range(1, 20_000)).startswith(shown)
    (last,) = (await mcp.read_resource(re.sub("offset=[0-9]+", "offset=6888880", following.uri))).contents
    assert isinstance(last, TextResourceContents)
    assert last.text.endswith("\n1000000\n")
    searched = await fields(mcp, "sandbox_exec", command=f"grep -c 777 {found['stdout_file']}")
    assert searched["stdout"] == f"{sum('777' in str(number) for number in range(1_000_001))}\n"


async def test_a_file_that_says_it_is_empty_is_read_all_the_same(one: Client) -> None:
    found = await called(one, "sandbox_read_file", path="/proc/cpuinfo")
    assert "processor" in text(found)
    assert "left out" not in text(found)
    blob = (await called(one, "sandbox_read_file", path="/proc/self/cmdline")).content[0]
    assert isinstance(blob, EmbeddedResource)
    assert isinstance(blob.resource, BlobResourceContents)
    assert b"\0" in base64.b64decode(blob.resource.blob)


async def test_output_that_a_full_disk_does_not_take_leaves_the_disk_as_it_was(one: Client) -> None:
    session_id = (await fields(one, "sandbox_create_session", disk_mib=64))["session_id"]
    fill = "head -c 200M /dev/zero > /tmp/full; truncate -s -1M /tmp/full; sync; df --output=avail -k /tmp | tail -1"
    before = await fields(one, "sandbox_exec", session_id=session_id, command=fill)
    found = await fields(one, "sandbox_exec", session_id=session_id, command="seq 1000000")
    assert found["stdout"].endswith("\n1000000\n")
    assert "The rest is not kept" in found["note"]
    looked = "ls /tmp/k8e-output; df --output=avail -k /tmp | tail -1"
    after = await fields(one, "sandbox_exec", session_id=session_id, command=looked)
    assert abs(int(after["stdout"]) - int(before["stdout"])) < 100, (before, after)


HOG = "held = bytearray(1400 * 2**20)\nprint('held', len(held))"


@pytest.mark.parametrize("runtime_class", ["gvisor", "container"])
async def test_out_of_memory_names_the_limit_and_the_way_to_more_is_open(one: Client, runtime_class: str) -> None:
    session_id = (await fields(one, "sandbox_create_session", runtime_class=runtime_class))["session_id"]
    killed = await fields(one, "sandbox_run", session_id=session_id, code=HOG, language="python")
    assert (killed["exit_code"], killed["reason"]) == (137, "oom_killed")
    assert "Out of memory: the session has 1024 MiB." in killed["note"]
    asked = re.search(r"sandbox_create_session with memory_mib (\d+)", killed["note"])
    assert asked is not None
    larger = await fields(one, "sandbox_create_session", runtime_class=runtime_class, memory_mib=int(asked[1]))
    ran = await fields(one, "sandbox_run", session_id=larger["session_id"], code=HOG, language="python")
    assert (ran["stdout"], ran["exit_code"]) == ("held 1468006400\n", 0)


@pytest.mark.parametrize(
    ("asked", "setting"),
    [({"memory_mib": 2**30}, "max_memory"), ({"cpus": 1000}, "max_cpu"), ({"disk_mib": 2**35}, "max_disk")],
)
async def test_more_than_the_server_allows_is_refused_with_the_ceiling(
    one: Client, asked: dict[str, int], setting: str
) -> None:
    refused = await called(one, "sandbox_create_session", **asked)
    assert refused.is_error
    assert "is more than this server allows" in text(refused)
    assert f"have its operator raise {setting}" in text(refused)


@pytest.mark.parametrize(("tool", "argument"), [("sandbox_run", "code"), ("sandbox_exec", "command")])
async def test_a_server_is_started_and_looked_at_as_the_description_says(one: Client, tool: str, argument: str) -> None:
    about = next(each.description or "" for each in (await one.list_tools()).tools if each.name == "sandbox_run")
    begin, look, ask = re.findall(r"`([^`]+)`", about)
    server = begin.replace("CMD", "python3 -u -m http.server 8123")
    began = await fields(one, tool, **{argument: f"echo made inside > index.html\n{server}"})
    assert began["exit_code"] == 0

    async def answers() -> bool:
        found = await fields(one, tool, **{argument: ask.replace("PORT", "8123")})
        return bool(found["stdout"] == "made inside\n")

    await until(answers)
    log = await fields(one, tool, **{argument: look})
    assert "GET / HTTP/1.1" in log["stdout"]
    assert "python3" in (await fields(one, tool, **{argument: "ps -e -o comm="}))["stdout"]


async def test_bytes_survive_and_a_sub_agent_sees_them(mcp: Client) -> None:
    session_id = (await fields(mcp, "sandbox_create_session"))["session_id"]
    data = bytes(range(256))
    coded = base64.b64encode(data).decode()
    await fields(
        mcp, "sandbox_write_file", session_id=session_id, path="/workspace/b", content=coded, encoding="base64"
    )
    child = (await fields(mcp, "sandbox_run_subagent", parent_session_id=session_id))["session_id"]
    found = await fields(mcp, "sandbox_exec", session_id=child, command="cat /workspace/b", binary=True)
    assert base64.b64decode(found["stdout_base64"]) == data
    files = await fields(mcp, "sandbox_list_files", session_id=child)
    assert [each["path"] for each in files["files"]] == ["/workspace/b"]


async def test_twenty_clients_at_once_each_have_a_sandbox_of_their_own(server: Server) -> None:
    async def one(number: int) -> tuple[str, str]:
        async with agent(server.target(), f"crowd-{number}") as client:
            found = await fields(client, "sandbox_run", code=f"echo {number} > mine; cat mine")
            return found["session_id"], found["stdout"]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number), name=f"client {number}") for number in range(20)]
    found = [task.result() for task in tasks]
    assert [text for _, text in found] == [f"{number}\n" for number in range(20)]
    assert len({session_id for session_id, _ in found}) == 20


async def test_an_approver_decides_what_a_client_asked_and_the_client_hears_it(
    server: Server, caller: AsyncSandboxClient
) -> None:
    session_id = await caller.create_session()
    owner = (await caller.whoami()).owner
    key = await caller.create_api_key("mcp-lead", role="approver", owner=owner)
    lead = AsyncSandboxClient(target=dataclasses.replace(server.target(), api_key=key.key))
    async with lead, agent(server.target()) as client:
        asked = await fields(client, "sandbox_confirm_action", session_id=session_id, action="drop the table")
        assert asked["approve_with"] == f"k8e sandbox approve {asked['approval_id']}"
        again = {"session_id": session_id, "approval_id": asked["approval_id"]}
        waiting = await fields(client, "sandbox_confirm_action", **again, timeout=0.2)
        assert (waiting["approved"], waiting["status"]) == (False, "pending")
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(fields(client, "sandbox_confirm_action", **again), name="wait")
            await lead.approve(asked["approval_id"], reason="it is a copy")
        assert (hearing.result()["approved"], hearing.result()["decided_by"]) == (True, "key:mcp-lead")
    await caller.delete_api_key("mcp-lead")


async def test_a_client_that_dies_in_the_middle_of_a_call_leaves_nothing(mortal: Server) -> None:
    async with AsyncSandboxClient(target=mortal.target()) as caller:
        async with wire(mortal.target(), "dies") as lines:
            await lines.begin()
            session_id = (await lines.tool("sandbox_run", code="true"))["structuredContent"]["session_id"]
            await lines.send(run(7, "sleep 1000"))

            async def runs() -> bool:
                return "sleep" in await commands(caller, session_id)

            await until(runs)
            lines.cut()

        async def is_gone() -> bool:
            return not await caller.sessions("all")

        await until(is_gone)


@pytest.mark.parametrize("mortal", ["15"], indirect=True)
async def test_a_killed_server_s_next_one_gives_a_client_its_session_back(mortal: Server) -> None:
    """And takes away the sandboxes of clients that do not come."""
    async with wire(mortal.target(), "stays") as stays, wire(mortal.target(), "goes") as goes:
        kept = await own(stays, "echo kept > /workspace/note")
        lost = await own(goes, "true")
        await stays.send(run(7, "sleep 1000"))
        mortal.kill()
        with contextlib.suppress(aio.AioRpcError):
            await stays.rest()
    mortal.start()
    async with AsyncSandboxClient(target=mortal.target()) as caller, wire(mortal.target(), "stays") as again:
        await again.begin()
        found = (await again.tool("sandbox_run", code="cat /workspace/note"))["structuredContent"]
        assert (found["session_id"], found["stdout"]) == (kept, "kept\n")

        async def is_swept() -> bool:
            return lost not in [each.session_id for each in await caller.sessions("all")]

        await until(is_swept)
        assert kept in [each.session_id for each in await caller.sessions()]


async def test_a_server_pays_for_mcp_when_somebody_uses_it_and_stops_at_once_with_idle_clients(mortal: Server) -> None:
    def is_loaded() -> bool:
        return "pydantic_core" in Path(f"/proc/{mortal.pid}/maps").read_text()

    async with wire(mortal.target(), "held") as silent:
        await silent.end()
        await silent.rest()
    assert not is_loaded()
    async with wire(mortal.target()) as lines:
        await lines.begin()
        assert is_loaded()
        stopping = asyncio.get_running_loop().run_in_executor(None, mortal.stop)
        with pytest.raises(aio.AioRpcError, match="server is stopping"):
            await lines.rest()
        assert await stopping == 0
    log = (mortal.data_dir / "log").read_text()
    assert "server stopped" in log
    assert "leaves running commands" not in log
    mortal.start()


async def own(lines: Wire, code: str) -> str:
    await lines.begin()
    return str((await lines.tool("sandbox_run", code=code))["structuredContent"]["session_id"])


def run(request_id: int, code: str) -> dict[str, Any]:
    params = {"name": "sandbox_run", "arguments": {"code": code, "timeout": 0}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


async def test_answers_as_text_say_the_same_as_the_structure(mcp: Client) -> None:
    result = await called(mcp, "sandbox_run", code="echo out; echo err >&2; exit 2")
    assert isinstance(result.content[0], TextContent)
    assert json.loads(result.content[0].text) == result.structured_content
    assert {"stdout": "out\n", "stderr": "err\n", "exit_code": 2}.items() <= dict(result.structured_content).items()


async def test_a_program_has_the_length_that_its_description_says(mcp: Client) -> None:
    tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
    assert "up to 1 MiB" in tools["sandbox_run"].input_schema["properties"]["code"]["description"]
    long = await fields(mcp, "sandbox_run", code="#" * 1_000_000 + "\nprint('ran')", language="python")
    assert long["stdout"] == "ran\n"
    longer = await called(mcp, "sandbox_run", code="#" * 1_100_000 + "\nprint('ran')", language="python")
    assert longer.is_error
    assert "write it to a file first" in text(longer)
