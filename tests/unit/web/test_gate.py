"""Who comes in through the agents' HTTP door: every refusal stands beside somebody who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import pytest

from k8e.client import AsyncSandboxClient
from k8e.identity.callers import Role
from k8e.web.connections import HEAD_BYTES
from k8e.web.presence import Patience
from k8e.web.serving import DoorSettings
from tests.support.agents_door import agents_door
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
CREATE = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "sandbox_create_session", "arguments": {}},
}
BOTH = {"accept": "application/json, text/event-stream"}


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path, mcp_grace_s=0) as door:
        yield door


@pytest.fixture
async def url(door: OpenDoor) -> AsyncIterator[str]:
    async with agents_door(door.target) as url:
        yield f"{url}/mcp"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        yield http


def key(door: OpenDoor, name: str, owner: str = "", role: Role = Role.USER) -> dict[str, str]:
    _, text = door.keys.create(name, role=role, owner=owner, ttl_s=0)
    return {"authorization": f"Bearer {text}"}


async def test_our_own_user_comes_in_without_a_key(http: httpx.AsyncClient, url: str) -> None:
    answer = await http.post(url, json=PING)
    assert (answer.status_code, answer.json()["result"]) == (200, {})


async def test_another_user_of_this_machine_needs_a_key(door: OpenDoor, url: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    asking = [sys.executable, "-c", ASKING, url]
    denied = await asyncio.to_thread(subprocess.run, asking, user=65534, capture_output=True, check=True)
    assert json.loads(denied.stdout) == 401
    bearer = key(door, "neighbour")["authorization"]
    asked = await asyncio.to_thread(subprocess.run, [*asking, bearer], user=65534, capture_output=True, check=True)
    assert json.loads(asked.stdout) == 200


ASKING = f"""
import json, sys, urllib.error, urllib.request
headers = {{"content-type": "application/json", **dict(zip(["authorization"], sys.argv[2:]))}}
request = urllib.request.Request(sys.argv[1], json.dumps({PING!r}).encode(), headers)
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.parametrize("text", ["Bearer nobody's", "Bearer", "Basic abc", "", "Bearer a b"])
async def test_a_bad_credential_is_nobody_even_from_our_own_user(http: httpx.AsyncClient, url: str, text: str) -> None:
    assert (await http.post(url, json=PING)).status_code == 200
    answer = await http.post(url, json=PING, headers={"authorization": text})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_decides_who_it_is_and_a_deleted_one_is_nobody(
    http: httpx.AsyncClient, door: OpenDoor, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.visitors.KNOWN_S", 0.0)
    bearer = key(door, "laptop")
    assert (await http.post(url, json=PING, headers=bearer)).status_code == 200
    door.keys.delete("laptop")
    assert (await http.post(url, json=PING, headers=bearer)).status_code == 401


async def test_an_approver_finds_nothing_here(http: httpx.AsyncClient, door: OpenDoor) -> None:
    user, approver = key(door, "agent", "a"), key(door, "phone", "a", Role.APPROVER)
    async with agents_door(door.target, DoorSettings(requires_key=True)) as url:
        for method, path, content in (("POST", "/mcp", PING), ("GET", "/a2a/tasks", None)):
            headers = {"a2a-version": "1.0"}
            admitted = await http.request(method, url + path, json=content, headers=headers | user)
            refused = await http.request(method, url + path, json=content, headers=headers | approver)
            assert (admitted.status_code, refused.status_code) == (200, 403)
            assert "is an approver: it may only see and decide approvals" in refused.json()["error"]["message"]


async def test_where_keys_are_required_our_own_user_needs_one_too(http: httpx.AsyncClient, door: OpenDoor) -> None:
    async with agents_door(door.target, DoorSettings(requires_key=True, has_a2a=False)) as url:
        assert (await http.post(f"{url}/mcp", json=PING)).status_code == 401
        assert (await http.post(f"{url}/mcp", json=PING, headers=key(door, "k"))).status_code == 200


async def test_who_speaks_for_somebody_else_shows_that_ones_key(
    http: httpx.AsyncClient, door: OpenDoor, url: str
) -> None:
    by_proxy = {"x-forwarded-for": "203.0.113.9"}
    assert (await http.post(url, json=PING, headers=by_proxy)).status_code == 401
    assert (await http.post(url, json=PING, headers=by_proxy | key(door, "k"))).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200),
        ({"host": "localhost:1", "origin": "http://localhost:3000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_a_web_page_does_not_come_in(
    http: httpx.AsyncClient, url: str, headers: dict[str, str], status: int
) -> None:
    assert (await http.post(url, json=PING, headers=headers)).status_code == status
    health = url.replace("/mcp", "/healthz")
    assert (await http.get(health, headers=headers)).status_code == status


async def test_pages_and_names_that_were_named_come_in(http: httpx.AsyncClient, door: OpenDoor) -> None:
    named = DoorSettings(hosts=frozenset({"box.example"}), origins=frozenset({"https://app.example"}), has_a2a=False)
    page = {"host": "box.example", "origin": "https://app.example"}
    async with agents_door(door.target) as plain, agents_door(door.target, named) as url:
        assert (await http.post(f"{plain}/mcp", json=PING, headers=page)).status_code == 421
        assert (await http.post(f"{url}/mcp", json=PING, headers=page)).status_code == 200


@pytest.mark.parametrize("path", ["/mcp", "/a2a", "/a2a/message:send"])
async def test_a_body_that_no_page_could_send_is_wanted(http: httpx.AsyncClient, door: OpenDoor, path: str) -> None:
    """A page may send text without asking first, and JSON only with permission."""
    body = json.dumps(PING).encode()
    async with agents_door(door.target, DoorSettings()) as url:
        for kind in ({"content-type": "text/plain"}, {"content-type": "text/plain, application/json"}, {}):
            assert (await http.post(url + path, content=body, headers=kind)).status_code == 415
        kind = {"content-type": "application/json; charset=utf-8"}
        assert (await http.post(url + path, content=body, headers=kind)).status_code in {200, 400}


async def test_a_post_without_a_body_needs_no_kind(http: httpx.AsyncClient, door: OpenDoor) -> None:
    async with agents_door(door.target, DoorSettings()) as url:
        answer = await http.post(f"{url}/a2a/tasks/nothing:cancel", headers={"a2a-version": "1.0"})
        assert answer.status_code == 404


# --- sessions and tokens belong to somebody ---------------------------------------------------------------------------


async def test_a_session_is_nobody_elses(http: httpx.AsyncClient, door: OpenDoor, url: str) -> None:
    mine, theirs = key(door, "mine", "a"), key(door, "theirs", "b")
    opened = await http.post(url, json=INITIALIZE, headers=BOTH | mine)
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    for headers, status in ((theirs, 404), ({}, 404), (mine, 200)):
        answer = await http.post(url, json=PING, headers=BOTH | session | headers)
        assert answer.status_code == status
    assert (await http.delete(url, headers=session | theirs)).status_code == 404
    assert (await http.post(url, json=PING, headers=BOTH | session | mine)).status_code == 200
    assert (await http.delete(url, headers=session | mine)).status_code == 200
    assert (await http.post(url, json=PING, headers=BOTH | session | mine)).status_code == 404


async def test_a_token_of_the_older_form_is_nobody_elses(http: httpx.AsyncClient, door: OpenDoor, url: str) -> None:
    mine, theirs = key(door, "mine", "a"), key(door, "theirs", "b")
    async with stream(http, url, mine) as events:
        name, token = await anext(events)
        assert (name, len(token), int(token, 16) >= 0) == ("session", 24, True)
        for headers, status in ((theirs, 404), (mine, 200)):
            answer = await http.post(url, json=PING, headers={"mcp-session-id": token} | headers)
            assert answer.status_code == status
        name, data = await anext(events)
        assert (name, json.loads(data)) == ("message", {"jsonrpc": "2.0", "id": 1, "result": {}})


async def test_a_key_that_was_made_anew_works_at_once(http: httpx.AsyncClient, door: OpenDoor, url: str) -> None:
    async def created(bearer: dict[str, str]) -> str:
        answer = await http.post(url, json=CREATE, headers=bearer)
        return str(answer.json()["result"]["structuredContent"]["session_id"])

    old = key(door, "laptop")
    session = (await http.post(url, json=INITIALIZE, headers=BOTH | old)).headers
    before = await created(old)
    door.keys.delete("laptop")
    new = key(door, "laptop")
    assert await created(new) != before
    # What only the old key's connection can do is over.
    old_session = {"mcp-session-id": session["mcp-session-id"]}
    assert (await http.post(url, json=PING, headers=BOTH | new | old_session)).status_code == 404


@contextlib.asynccontextmanager
async def stream(
    http: httpx.AsyncClient, url: str, headers: dict[str, str]
) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
    async with http.stream("GET", url, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Names and data; a comment is an event without data."""
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith(":"):
            yield line, ""
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, line[6:]


async def test_the_older_form_gives_signs_of_life(http: httpx.AsyncClient, door: OpenDoor) -> None:
    settings = DoorSettings(ping_s=0.01, has_a2a=False)
    async with agents_door(door.target, settings) as url, stream(http, f"{url}/mcp", {}) as heard:
        assert (await anext(heard))[0] == "session"
        assert await anext(heard) == (": ping", "")


async def test_a_door_that_closes_ends_its_streams_in_order(
    http: httpx.AsyncClient, door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.serving.DRAIN_S", PATIENCE_S)
    async with contextlib.AsyncExitStack() as kept:
        async with agents_door(door.target) as url:
            heard = await kept.enter_async_context(stream(http, f"{url}/mcp", {}))
            assert (await anext(heard))[0] == "session"
        # One that is cut off would be an error here.
        assert [event async for event in heard] == []


async def test_the_older_form_answers_mistakes_as_it_did(http: httpx.AsyncClient, url: str) -> None:
    kind = {"content-type": "application/json"}
    bad = await http.post(url, content=b"{nonsense", headers=kind)
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, -32700)
    notified = await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (notified.status_code, notified.content) == (202, b"")


async def test_what_a_client_made_ends_when_its_stream_has_been_gone_for_long(
    http: httpx.AsyncClient, door: OpenDoor
) -> None:
    settings = DoorSettings(patience=Patience(grace_s=0.05), has_a2a=False)
    async with agents_door(door.target, settings) as url:
        async with stream(http, f"{url}/mcp", {}) as heard:
            _, token = await anext(heard)
            answer = await http.post(f"{url}/mcp", json=CREATE, headers={"mcp-session-id": token})
            session_id = answer.json()["result"]["structuredContent"]["session_id"]
            assert session_id in await listed(door)
        async with asyncio.timeout(PATIENCE_S):
            while session_id in await listed(door):
                await asyncio.sleep(0.02)
        assert (await http.post(f"{url}/mcp", json=PING, headers={"mcp-session-id": token})).status_code == 404


async def listed(door: OpenDoor) -> list[str]:
    async with AsyncSandboxClient(target=door.target) as client:
        return [each.session_id for each in await client.sessions("all")]


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_a_head_has_a_bounded_size_and_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * (HEAD_BYTES + 1))
    async with asyncio.timeout(PATIENCE_S):
        assert await reached_end(reader) == b""
    writer.close()
    monkeypatch.setattr("k8e.web.connections.HEAD_S", 0.05)
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        assert await reached_end(reader) == b""
    writer.close()


async def reached_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_body_has_a_bounded_size(http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.web.guests.BODY_BYTES", 1000)
    large = {**PING, "params": {"_meta": {"x": "x" * 2000}}}
    assert (await http.post(url, json=large)).status_code == 413
    assert (await http.post(url, json=PING)).status_code == 200


async def test_an_answer_that_is_too_large_for_the_stream_is_only_in_its_body(
    http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.mirror.ANSWER_BYTES", 1000)
    async with stream(http, url, {}) as heard:
        token = {"mcp-session-id": (await anext(heard))[1]}
        large = await http.post(url, json={"jsonrpc": "2.0", "id": 7, "method": "tools/list"}, headers=token)
        assert len(large.json()["result"]["tools"]) == 12
        assert (await http.post(url, json=PING, headers=token)).status_code == 200
        assert json.loads((await anext(heard))[1])["id"] == PING["id"]


async def test_bodies_that_come_in_have_a_bounded_size_together(
    http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.rooms.BYTES", 1000)
    padded = {**PING, "params": {"_meta": {"x": "x" * 500}}}

    async def until(status: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await http.post(url, json=padded)).status_code != status:
                await asyncio.sleep(0.02)

    host, port = url.split("/")[2].split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    kind = b"content-type: application/json\r\ncontent-length: 2000\r\n"
    writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n" + kind + b"\r\n" + b" " * 900)
    await until(503)
    assert (await http.post(url, json=PING)).status_code == 200
    writer.close()
    await until(200)


async def test_a_body_has_a_bounded_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.web.mcp.BODY_S", 0.05)
    host, port = url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    kind = b"content-type: application/json\r\ncontent-length: 100\r\n"
    writer.write(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n" + kind + b"\r\n{")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_an_identity_has_a_bounded_number_of_clients(
    http: httpx.AsyncClient, door: OpenDoor, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.guests.GUESTS", 2)
    mine, theirs = key(door, "mine", "a"), key(door, "theirs", "b")
    opened = [(await http.post(url, json=INITIALIZE, headers=BOTH | mine)).status_code for _ in range(3)]
    assert opened == [200, 200, 503]
    assert (await http.post(url, json=INITIALIZE, headers=BOTH | theirs)).status_code == 200


async def test_a_server_that_is_gone_is_a_503_that_says_so(http: httpx.AsyncClient, tmp_path: Path) -> None:
    async with open_door(tmp_path) as door:
        target = door.target
    async with agents_door(target) as url:
        answer = await http.post(f"{url}/mcp", json=PING)
        assert answer.status_code == 503
        assert "no answer from" in answer.json()["error"]["message"]
        assert (await http.get(f"{url}/healthz")).json() == {"ok": True}
