"""What the network decided, as the SDK tells it. The test decides, so the server is in its process."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.client import AsyncSandboxClient, EgressDenial
from k8e.client.discovery import discover
from k8e.model import Verdict
from tests.support.decided import asking, decide, decision, denied_once
from tests.support.door import OpenDoor, open_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(data_dir: Path) -> AsyncIterator[OpenDoor]:
    root = data_dir / "server"
    root.mkdir()
    async with open_server(root) as door:
        yield door


@pytest.fixture(params=["socket", "tls"])
async def client(door: OpenDoor, data_dir: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncSandboxClient]:
    found = discover(environ={"K8E_DATA_DIR": str(data_dir / "server")})
    assert found.socket
    target = found if request.param == "socket" else dataclasses.replace(found, socket="")
    async with AsyncSandboxClient(target=target) as client:
        yield client


async def test_decisions_are_listed_followed_and_counted(door: OpenDoor, client: AsyncSandboxClient) -> None:
    sid = await client.create_session(allowed_hosts=["a.example"])
    await decide(door, *(decision(door, sid, verdict) for verdict in (Verdict.ALLOWED, Verdict.CLOSED)))
    assert [each.verdict async for each in client.egress(sid)] == ["allowed", "closed"]
    following = aiter(client.egress(sid, 1, follow=True))
    assert (await anext(following)).verdict == "closed"
    await decide(door, decision(door, sid, Verdict.DENIED))
    denied = await anext(following)
    assert (denied.verdict, denied.name) == ("denied", "a.example")
    await client.destroy_session(sid)
    assert [each async for each in following] == []
    assert (await client.server_status()).egress["denied"] == 1


async def test_a_result_says_which_hosts_could_not_be_reached(
    door: OpenDoor, client: AsyncSandboxClient, data_dir: Path
) -> None:
    sid = await client.create_session()
    denial = EgressDenial(host="a.example", port=443, reason="not on the list")
    assert (await client.exec(sid, "true")).egress_denied == ()
    async with denied_once(door, sid, data_dir):
        assert (await client.exec(sid, asking(data_dir))).egress_denied == (denial,)
    async with denied_once(door, sid, data_dir):
        assert (await client.exec(sid, "sh", stdin=asking(data_dir).encode())).egress_denied == (denial,)
