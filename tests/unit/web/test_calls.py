"""Questions in the older form end when nobody waits for their answers; what runs is a real process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from mcp.server.streamable_http import REQUEST_CANCELLED

from k8e.client import AsyncSandboxClient
from tests.support.agents_door import agents_door
from tests.support.door import open_door
from tests.support.inside import exists, gone

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
BOTH = {"accept": "application/json, text/event-stream"}


class Asking:
    """A client's way to the door, and the session in which it runs something that does not end by itself."""

    def __init__(self, http: httpx.AsyncClient, url: str, sandbox: AsyncSandboxClient, session_id: str) -> None:
        self._http = http
        self._url = url
        self._sandbox = sandbox
        self._session_id = session_id

    async def slow(self, request_id: int, **headers: str) -> httpx.Response:
        arguments = {"session_id": self._session_id, "command": "echo $$ > made; mv made pid; exec sleep 600"}
        params = {"name": "sandbox_exec", "arguments": {**arguments, "timeout": 600}}
        asked = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        return await self._http.post(self._url, json=asked, headers=headers, timeout=PATIENCE_S)

    async def initialize(self, request_id: int, **headers: str) -> httpx.Response:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        asked = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": params}
        return await self._http.post(self._url, json=asked, headers=headers)

    async def cancel(self, request_id: int, **headers: str) -> int:
        told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        return (await self._http.post(self._url, json=told, headers=headers)).status_code

    @asynccontextmanager
    async def token(self) -> AsyncIterator[dict[str, Any]]:
        async with self._http.stream("GET", self._url) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield {"mcp-session-id": line[6:]}
                    return

    async def pid(self) -> int:
        """Of what runs, when it does."""
        async with asyncio.timeout(PATIENCE_S):
            while "/workspace/pid" not in [each.path for each in await self._sandbox.list_directory(self._session_id)]:
                await asyncio.sleep(0.02)
        return int(await self._sandbox.read_file(self._session_id, "pid"))


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    async with (
        open_door(tmp_path, mcp_grace_s=0) as door,
        agents_door(door.target) as url,
        AsyncSandboxClient(target=door.target) as sandbox,
        httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http,
    ):
        yield Asking(http, f"{url}/mcp", sandbox, await sandbox.create_session())


@pytest.mark.parametrize("has_token", [False, True])
async def test_a_command_ends_with_the_client_that_waits_for_it(asking: Asking, has_token: bool) -> None:
    async with asking.token() as token, asyncio.TaskGroup() as group:
        waiting = group.create_task(asking.slow(7, **(token if has_token else {})), name="client")
        pid = await asking.pid()
        assert exists(pid)
        waiting.cancel()
        await gone(pid)


async def test_a_client_can_say_that_it_does_not_want_an_answer_any_more(asking: Asking) -> None:
    async with asking.token() as mine, asking.token() as theirs, asyncio.TaskGroup() as group:
        waiting = group.create_task(asking.slow(7, **mine), name="client")
        pid = await asking.pid()
        # Another client's number 7, nobody's, and another number of its own are not this one.
        for request_id, token in ((7, theirs), (7, {}), (8, mine)):
            assert await asking.cancel(request_id, **token) == 202
        assert exists(pid)
        assert not waiting.done()
        assert await asking.cancel(7, **mine) == 202
        answer = await waiting
        assert (answer.status_code, answer.json()["id"]) == (200, 7)
        assert answer.json()["error"]["code"] == REQUEST_CANCELLED
        await gone(pid)


async def test_an_identity_that_asks_too_much_is_told_so(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.mcp.admission.CALLS", 1)
    async with asking.token() as mine, asyncio.TaskGroup() as group:
        waiting = group.create_task(asking.slow(7, **mine), name="client")
        await asking.pid()
        for headers in ({}, mine, BOTH):
            answer = await asking.initialize(8, **headers)
            assert (answer.status_code, answer.json()["id"]) == (200, 8)
            assert "too many calls" in answer.json()["error"]["message"]
        assert await asking.cancel(7, **mine) == 202
        await waiting
        for headers in ({}, mine, BOTH):
            # A place is free again a moment after its answer was sent.
            async with asyncio.timeout(PATIENCE_S):
                while "error" in (answer := (await asking.initialize(8, **headers)).json()):
                    assert "too many calls" in answer["error"]["message"]
            assert answer["result"]["serverInfo"]["name"] == "k8e-sandbox"
