"""`k8e sandbox-mcp --http` as agents meet it: the official clients by its URL, real sandboxes, real deaths."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.client import ConnectMode
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData, TextResourceContents
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from k8e.client import AsyncSandboxClient
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


@contextmanager
def serving(environ: dict[str, str], *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, its URL, and at the end its end."""
    argv = [str(K8E), "sandbox-mcp", "--http", "--http-addr", "127.0.0.1:0", *flags]
    with subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = next((line for line in process.stderr if "http://" in line), "")
            found = re.search(r"http://\S+", told)
            assert found is not None
            yield found[0], process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) in {0, -signal.SIGKILL}


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with serving(server.environ, "--grace", "1") as (url, _):
        yield url


@asynccontextmanager
async def connected(
    url: str, mode: ConnectMode = "legacy", person: ElicitationFnT | None = None
) -> AsyncIterator[Client]:
    """The official client; a proxy that the environment names is not for this machine."""
    async with (
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, elicitation_callback=person) as client,
    ):
        yield client


@pytest.fixture(params=["legacy", "2026-07-28"])
async def mcp(url: str, tidy: None, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with connected(url, request.param) as client:
        yield client


# --- clients ----------------------------------------------------------------------------------------------------------


async def test_the_python_client_finds_twelve_tools_and_uses_them(mcp: Client) -> None:
    assert len((await mcp.list_tools()).tools) == 12
    ran = await fields(mcp, "sandbox_run", code="print(6 * 7)", language="python")
    assert (ran["stdout"], ran["exit_code"]) == ("42\n", 0)
    again = await fields(mcp, "sandbox_run", code="echo again")
    assert again["session_id"] == ran["session_id"]


async def test_a_client_hears_of_progress(mcp: Client) -> None:
    session_id = (await fields(mcp, "sandbox_run", code="true"))["session_id"]
    heard: list[float] = []
    has_heard = [asyncio.Event(), asyncio.Event()]

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        has_heard[min(len(heard), len(has_heard)) - 1].set()

    async def go_on() -> None:
        for number, event in enumerate(has_heard, start=1):
            await event.wait()
            await fields(mcp, "sandbox_write_file", session_id=session_id, path=f"heard-{number}", content="")

    # It goes on only when each piece has been heard: the last one may come with the answer, and then is not told.
    waits = [f"until [ -e heard-{number} ]; do sleep 0.05; done" for number in (1, 2)]
    command = f"echo 1; {waits[0]}; echo 2; {waits[1]}; echo 3"
    arguments = {"session_id": session_id, "command": command}
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(go_on(), name="go on")
        result = await mcp.call_tool("sandbox_exec_stream", arguments, progress_callback=note)
    assert isinstance(result, CallToolResult)
    assert text(result) == "1\n2\n3\n"
    assert len(heard) >= 2


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_person_is_asked_in_the_agents_own_window(url: str, tidy: None, mode: ConnectMode) -> None:
    asked: list[str] = []

    async def person(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    async with connected(url, mode, person) as client:
        session_id = (await fields(client, "sandbox_run", code="true"))["session_id"]
        found = await fields(client, "sandbox_confirm_action", session_id=session_id, action="delete everything")
        assert found["approved"] is True
    assert len(asked) == 1
    assert "delete everything" in asked[0]


def test_the_typescript_client_finds_and_uses_them(
    node_clients: NodeClients, url: str, environ: dict[str, str]
) -> None:
    told = json.loads(node_clients.typescript([url], environ))
    assert (told["server"], len(told["tools"])) == ("k8e-sandbox", 12)
    assert (told["stdout"], told["streamed"]) == ("42\n", "1\n2\n3\n")
    assert told["progress"] >= 2
    assert told["counted"] == "".join(f"{number}\n" for number in range(1, 20001))
    assert told["longest"] < 26_000


def test_the_inspector_finds_and_uses_them(node_clients: NodeClients, url: str, environ: dict[str, str]) -> None:
    listed = json.loads(node_clients.inspector([url, "--transport", "http", "--method", "tools/list"], environ))
    assert len(listed["tools"]) == 12
    asking = ["--method", "tools/call", "--tool-name", "sandbox_run", "--tool-arg", "code=echo from the inspector"]
    ran = json.loads(node_clients.inspector([url, "--transport", "http", *asking], environ))
    assert ran["structuredContent"]["stdout"] == "from the inspector\n"


@pytest.mark.parametrize("revision", HANDSHAKE_PROTOCOL_VERSIONS)
async def test_every_revision_with_a_handshake_is_spoken(url: str, revision: str) -> None:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        for accept in ("application/json, text/event-stream", "*/*"):
            answer = await http.post(url, json=asked, headers={"accept": accept})
            assert answer.status_code == 200
            assert f'"protocolVersion":"{revision}"' in answer.text


async def test_fifty_clients_at_once(url: str, server: Server, tidy: None) -> None:
    async with AsyncSandboxClient(target=server.target()) as caller:
        session_ids = [await caller.create_session(runtime_class="container") for _ in range(5)]
    meeting = asyncio.Barrier(50)

    async def one(number: int) -> str:
        async with connected(url, "legacy" if number % 2 else "2026-07-28") as each:
            await meeting.wait()
            found = await fields(
                each, "sandbox_exec", session_id=session_ids[number % 5], command=f"echo {number}", timeout=60
            )
            return str(found["stdout"])

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(number), name=f"client {number}") for number in range(50)]
    assert [each.result() for each in asked] == [f"{number}\n" for number in range(50)]


async def test_ten_megabytes_and_ten_thousand_lines_go_through(mcp: Client) -> None:
    session_id = (await fields(mcp, "sandbox_run", code="true"))["session_id"]
    content = "0123456789abcdef" * (10 * MIB // 16)
    await fields(mcp, "sandbox_write_file", session_id=session_id, path="large.txt", content=content)
    (whole,) = (await mcp.read_resource(f"k8e://{session_id}/workspace/large.txt")).contents
    assert isinstance(whole, TextResourceContents)
    assert whole.text == content
    counted = await called(mcp, "sandbox_exec_stream", session_id=session_id, command="seq 10000", max_chars=100_000)
    assert text(counted) == "".join(f"{number}\n" for number in range(1, 10001))


async def test_a_client_that_ends_its_session_takes_its_sandboxes_along(url: str, server: Server, tidy: None) -> None:
    async with connected(url) as client:
        session_id = (await fields(client, "sandbox_run", code="true"))["session_id"]
    async with AsyncSandboxClient(target=server.target()) as caller:

        async def is_gone() -> bool:
            return session_id not in [each.session_id for each in await caller.sessions("all")]

        await until(is_gone)


# --- deaths -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """Free each time that a server comes back."""
    with lasting_port() as port:
        yield port


@pytest.fixture
def mortal(data_dir: Path, host: Provisioned, port: int) -> Iterator[Server]:
    flags = (*NO_POOL, "--mcp-grace", "20", "--default-runtime", "container", "--max-mcp-chars", "30000")
    server = Server(data_dir, *flags, listen=f"127.0.0.1:{port}")
    server.start()
    yield server
    server.destroy()


async def test_the_death_of_the_server_and_then_of_the_door(mortal: Server) -> None:
    """The server's next one goes on with the call and the session; what a killed door's clients made ends by itself."""
    # By its name it is somebody else's to start.
    elsewhere = mortal.environ | {"K8E_SANDBOX_ENDPOINT": mortal.target().endpoint}
    with serving(elsewhere) as (url, door):
        async with AsyncSandboxClient(target=mortal.target()) as caller, httpx2.AsyncClient(trust_env=False) as http:
            opened = await ask(http, url, "initialize", INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            ran = result(await tool(http, url, session, "sandbox_run", code="echo kept > kept", max_chars=30_000))
            session_id = ran["structuredContent"]["session_id"]
            refused = result(await tool(http, url, session, "sandbox_run", code="true", max_chars=30_001))
            assert "max_chars: this server allows 30000 at most" in refused["content"][0]["text"]

            async with asyncio.TaskGroup() as group:
                waiting = "echo before; touch begun; until [ -e go-on ]; do sleep 0.05; done; echo after"
                slow = group.create_task(
                    tool(http, url, session, "sandbox_run", code=waiting, timeout=600), name="slow"
                )

                async def has_begun() -> bool:
                    return "/workspace/begun" in [each.path for each in await caller.list_directory(session_id)]

                await until(has_begun)
                mortal.kill()
                mortal.start()
                async with AsyncSandboxClient(target=mortal.target()) as returned:
                    await returned.write_file(session_id, "go-on", b"")
            assert result(slow.result())["structuredContent"]["stdout"] == "before\nafter\n"
            again = result(await tool(http, url, session, "sandbox_run", code="cat kept"))
            assert again["structuredContent"]["session_id"] == session_id
            assert again["structuredContent"]["stdout"] == "kept\n"

            door.kill()

            async def is_gone() -> bool:
                return session_id not in [each.session_id for each in await caller.sessions("all")]

            await until(is_gone)


async def test_the_door_starts_the_server_that_it_needs_and_starts_it_again(
    environ: dict[str, str], data_dir: Path, host: Provisioned, port: int
) -> None:
    use_prepared_images(data_dir)
    private = environ | {
        "K8E_DATA_DIR": str(data_dir),
        "K8E_SANDBOX_TOOLS_DIR": str(TOOLS_DIR),
        "K8E_SANDBOX_LISTEN": f"127.0.0.1:{port}",
        "K8E_SANDBOX_METRICS_LISTEN": "off",
        "K8E_SANDBOX_POOL_MIN": "0",
        "K8E_SANDBOX_DEFAULT_RUNTIME": "container",
    }
    try:
        with serving(private) as (url, _):
            async with httpx2.AsyncClient(trust_env=False) as http:
                opened = await ask(http, url, "initialize", INITIALIZE)
                session = {"mcp-session-id": opened.headers["mcp-session-id"]}
                ran = result(await tool(http, url, session, "sandbox_run", code="echo kept > kept"))
                known = json.loads((data_dir / "server" / "server.json").read_text())
                os.kill(known["pid"], signal.SIGKILL)

                async def works() -> bool:
                    again = result(await tool(http, url, session, "sandbox_run", code="cat kept"))
                    return bool(again.get("structuredContent") == ran["structuredContent"] | {"stdout": "kept\n"})

                await until(works)
    finally:
        argv = [str(K8E), "server", "stop", "--destroy"]
        subprocess.run(argv, env=private, capture_output=True, check=False, timeout=60)


INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


async def ask(
    http: httpx2.AsyncClient, url: str, method: str, params: dict[str, Any], **headers: str
) -> httpx2.Response:
    accepted = {"accept": "application/json, text/event-stream", **headers}
    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await http.post(url, json=asked, headers=accepted, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer


async def tool(
    http: httpx2.AsyncClient, url: str, session: dict[str, str], name: str, **arguments: Any
) -> httpx2.Response:
    return await ask(http, url, "tools/call", {"name": name, "arguments": arguments}, **session)


def result(answer: httpx2.Response) -> dict[str, Any]:
    """The one answer, whole or among events."""
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    told = events or [answer.json()]
    found = next(each["result"] for each in told if each.get("id") == 1)
    assert isinstance(found, dict)
    return found
