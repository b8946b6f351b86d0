"""`k8e sandbox-mcp` as agents start it: the official clients on its standard streams, real sandboxes, real deaths."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp_types import (
    BlobResourceContents,
    ElicitRequestParams,
    ElicitResult,
    EmbeddedResource,
    ErrorData,
    TextResourceContents,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from k8e.client import AsyncSandboxClient, SandboxClient
from k8e.setup.provision import Provisioned
from tests.support.commands import K8E
from tests.support.mcp_calls import called, fields, text, until
from tests.support.mcp_clients import NodeClients, node_clients
from tests.support.places import TOOLS_DIR
from tests.support.ports import lasting_port
from tests.support.prepared_images import use_prepared_images
from tests.support.servers import NO_POOL, Server

__all__ = ["node_clients"]

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
MIB = 2**20
TOOLS = {
    "sandbox_run", "sandbox_status", "sandbox_create_session", "sandbox_destroy_session", "sandbox_exec",
    "sandbox_exec_stream", "sandbox_write_file", "sandbox_read_file", "sandbox_list_files", "sandbox_pip_install",
    "sandbox_run_subagent", "sandbox_confirm_action",
}  # fmt: skip


@asynccontextmanager
async def connected(
    environ: dict[str, str], mode: ConnectMode = "legacy", person: ElicitationFnT | None = None
) -> AsyncIterator[Client]:
    started = StdioServerParameters(command=str(K8E), args=["sandbox-mcp"], env=environ)
    async with Client(started, mode=mode, elicitation_callback=person) as client:
        yield client


@pytest.fixture(params=["legacy", "2026-07-28"])
async def mcp(environ: dict[str, str], request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with connected(environ, request.param) as client:
        yield client


# --- clients ----------------------------------------------------------------------------------------------------------


async def test_the_python_client_finds_twelve_tools_and_uses_them(mcp: Client) -> None:
    assert {tool.name for tool in (await mcp.list_tools()).tools} == TOOLS
    ran = await fields(mcp, "sandbox_run", code="print(6 * 7)", language="python")
    assert (ran["stdout"], ran["exit_code"]) == ("42\n", 0)
    again = await fields(mcp, "sandbox_run", code="echo again")
    assert again["session_id"] == ran["session_id"]


def test_the_typescript_client_finds_and_uses_them(node_clients: NodeClients, environ: dict[str, str]) -> None:
    told = json.loads(node_clients.typescript([str(K8E), "sandbox-mcp"], environ))
    check_typescript(told)


def check_typescript(told: dict[str, Any]) -> None:
    assert (told["server"], set(told["tools"])) == ("k8e-sandbox", TOOLS)
    assert (told["stdout"], told["streamed"]) == ("42\n", "1\n2\n3\n")
    assert told["progress"] >= 2
    assert told["counted"] == "".join(f"{number}\n" for number in range(1, 20001))
    assert told["longest"] < 26_000


def test_the_inspector_finds_and_uses_them(node_clients: NodeClients, environ: dict[str, str]) -> None:
    command = ["-e", f"K8E_DATA_DIR={environ['K8E_DATA_DIR']}", str(K8E), "sandbox-mcp"]
    listed = json.loads(node_clients.inspector([*command, "--method", "tools/list"], environ))
    assert {tool["name"] for tool in listed["tools"]} == TOOLS
    asking = ["--method", "tools/call", "--tool-name", "sandbox_run", "--tool-arg", "code=echo from the inspector"]
    ran = json.loads(node_clients.inspector([*command, *asking], environ))
    assert ran["structuredContent"]["stdout"] == "from the inspector\n"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_is_asked_in_the_agents_own_window(environ: dict[str, str], mode: ConnectMode) -> None:
    asked: list[str] = []

    async def person(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    async with connected(environ, mode, person) as client:
        session_id = (await fields(client, "sandbox_run", code="true"))["session_id"]
        found = await fields(client, "sandbox_confirm_action", session_id=session_id, action="delete everything")
        assert found["approved"] is True
    assert len(asked) == 1
    assert "delete everything" in asked[0]


@pytest.mark.parametrize("revision", HANDSHAKE_PROTOCOL_VERSIONS)
def test_every_revision_with_a_handshake_is_spoken(environ: dict[str, str], revision: str) -> None:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    argv = [str(K8E), "sandbox-mcp"]
    done = subprocess.run(argv, input=line.encode(), env=environ, capture_output=True, timeout=PATIENCE_S, check=True)
    assert json.loads(done.stdout)["result"]["protocolVersion"] == revision
    assert done.stderr == b""


async def test_fifty_clients_at_once(server: Server, environ: dict[str, str], client: SandboxClient) -> None:
    session_ids = [client.create_session(runtime_class="container") for _ in range(5)]
    meeting = asyncio.Barrier(50)

    async def one(number: int) -> str:
        async with connected(environ) as each:
            await meeting.wait()
            found = await fields(
                each, "sandbox_exec", session_id=session_ids[number % 5], command=f"echo {number}", timeout=60
            )
            return str(found["stdout"])

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(number), name=f"client {number}") for number in range(50)]
    assert [each.result() for each in asked] == [f"{number}\n" for number in range(50)]


async def test_large_and_binary_and_long_things_go_through(mcp: Client) -> None:
    session_id = (await fields(mcp, "sandbox_run", code="true"))["session_id"]
    content = "0123456789abcdef" * (10 * MIB // 16)
    await fields(mcp, "sandbox_write_file", session_id=session_id, path="large.txt", content=content)
    (whole,) = (await mcp.read_resource(f"k8e://{session_id}/workspace/large.txt")).contents
    assert isinstance(whole, TextResourceContents)
    assert whole.text == content
    made = "import sys; open('/workspace/b', 'wb').write(bytes(range(256)) * 50)"
    await fields(mcp, "sandbox_run", code=made, language="python")
    read = await called(mcp, "sandbox_read_file", session_id=session_id, path="b")
    held = next(each for each in read.content if isinstance(each, EmbeddedResource)).resource
    assert isinstance(held, BlobResourceContents)
    assert base64.b64decode(held.blob) == bytes(range(256)) * 50
    shown = await fields(mcp, "sandbox_exec", session_id=session_id, command=r"printf 'a\377b'")
    assert shown["stdout"] == "a\ufffdb"
    counted = await called(mcp, "sandbox_exec_stream", session_id=session_id, command="seq 10000", max_chars=100_000)
    assert text(counted) == "".join(f"{number}\n" for number in range(1, 10001))


# --- deaths -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(data_dir: Path, host: Provisioned, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that may die; a test says for how long it waits for clients that were cut off."""
    flags = (*NO_POOL, "--mcp-grace", request.param, "--default-runtime", "container")
    with lasting_port() as port:
        server = Server(data_dir, *flags, listen=f"127.0.0.1:{port}")
        server.start()
        yield server
        server.destroy()


@asynccontextmanager
async def lines(environ: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(K8E), "sandbox-mcp", env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=MIB
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def say(process: asyncio.subprocess.Process, method: str, number: int | None = None, **params: Any) -> None:
    assert process.stdin is not None
    numbered = {} if number is None else {"id": number}
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **numbered, "method": method, "params": params}).encode() + b"\n")
    await process.stdin.drain()


async def tool(process: asyncio.subprocess.Process, number: int, name: str, **arguments: Any) -> None:
    await say(process, "tools/call", number, name=name, arguments=arguments)


async def hear(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return json.loads(await process.stdout.readline())


async def begin(process: asyncio.subprocess.Process) -> str:
    """The handshake and a first call; the client's own session."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    await say(process, "initialize", 0, **params)
    await hear(process)
    await say(process, "notifications/initialized")
    await tool(process, 1, "sandbox_run", code="echo kept > kept")
    return str((await hear(process))["result"]["structuredContent"]["session_id"])


@pytest.mark.parametrize("mortal", ["1"], indirect=True)
async def test_a_killed_client_leaves_no_process_and_after_the_grace_no_sandbox(mortal: Server) -> None:
    async with lines(mortal.environ) as process, AsyncSandboxClient(target=mortal.target()) as caller:
        session_id = await begin(process)
        await tool(process, 2, "sandbox_run", code="sleep 600", timeout=600)

        async def sleeps() -> bool:
            return "sleep" in [each.comm for each in await caller.processes(session_id)]

        async def is_gone() -> bool:
            return session_id not in [each.session_id for each in await caller.sessions("all")]

        await until(sleeps)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until(is_gone)


@pytest.mark.parametrize("mortal", ["60"], indirect=True)
@pytest.mark.parametrize("is_named", [False, True], ids=["socket", "tls"])
async def test_a_killed_server_is_told_and_its_next_one_goes_on_in_the_same_session(
    mortal: Server, is_named: bool
) -> None:
    named = {"K8E_SANDBOX_ENDPOINT": mortal.target().endpoint} if is_named else {}
    async with lines(mortal.environ | named) as process:
        session_id = await begin(process)
        await tool(process, 2, "sandbox_run", code="touch begun; sleep 600", timeout=600)
        async with AsyncSandboxClient(target=mortal.target()) as caller:

            async def has_begun() -> bool:
                return "/workspace/begun" in [
                    each.path for each in await caller.list_directory(session_id, "/workspace")
                ]

            await until(has_begun)
        mortal.kill()
        lost = await hear(process)
        assert (lost["id"], lost["result"]["isError"]) == (2, True)
        assert "server stopped or was restarted" in lost["result"]["content"][0]["text"]
        mortal.start()
        await tool(process, 3, "sandbox_run", code="cat kept")
        answer = await hear(process)
        assert answer["result"]["structuredContent"]["stdout"] == "kept\n"
        assert answer["result"]["structuredContent"]["session_id"] == session_id


async def test_a_reader_that_takes_its_time_gets_everything(environ: dict[str, str]) -> None:
    async with lines(environ) as process:
        session_id = await begin(process)
        await tool(process, 2, "sandbox_exec", session_id=session_id, command="seq 100000", timeout=60)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        found = bytearray()
        while piece := await process.stdout.read(4096):
            found += piece
        answer = json.loads(found.splitlines()[-1])
        assert answer["result"]["structuredContent"]["stdout"].startswith("1\n2\n3\n")
        assert await process.wait() == 0


async def test_one_line_in_a_config_is_enough_where_no_server_runs(
    environ: dict[str, str], data_dir: Path, host: Provisioned
) -> None:
    use_prepared_images(data_dir)
    private = environ | {
        "K8E_DATA_DIR": str(data_dir),
        "K8E_SANDBOX_TOOLS_DIR": str(TOOLS_DIR),
        "K8E_SANDBOX_LISTEN": "127.0.0.1:0",
        "K8E_SANDBOX_METRICS_LISTEN": "off",
        "K8E_SANDBOX_POOL_MIN": "0",
    }
    assert not (data_dir / "server" / "server.json").exists()
    try:
        async with connected(private, "auto") as client:
            ran = await fields(client, "sandbox_run", code="echo begun")
            assert ran["stdout"] == "begun\n"
        assert (data_dir / "server" / "server.json").exists()
    finally:
        argv = [str(K8E), "server", "stop", "--destroy"]
        subprocess.run(argv, env=private, capture_output=True, check=False, timeout=60)
