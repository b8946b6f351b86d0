"""Connections that say nothing: another user's take a door from nobody, and slow nobody down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.client.light.unix import connected
from k8e.doors.grpc import FrontSettings
from k8e.telemetry.page import serve
from tests.support.agents_door import agents_door
from tests.support.connect import Wire, connect_door
from tests.support.door import OpenDoor, open_door, server_process
from tests.support.strangers import NOBODY, Crowd, crowd_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

PATIENCE_S = 60.0
CALLS = 100


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.01)


async def _has_lost(crowd: Crowd, count: int) -> bool:
    return (await crowd.count())[0] >= count


# The unix socket.


async def _took_s(path: Path) -> float:
    """What a call takes that has a connection of its own, as most have."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        # As our clients do: the kernel has no room for another while the queue is full.
        while (sock := connected(str(path))) is None:
            await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        assert (await Wire(reader, writer).ask("WhoAmI")).status == 200
        times.append(time.perf_counter() - began)
        writer.close()
    return statistics.median(times)


@pytest.mark.alone
async def test_another_users_crowd_that_comes_back_and_back_slows_nobody(data_dir: Path) -> None:
    with server_process(data_dir):
        path = data_dir / "server" / "k8e.sock"
        alone = await _took_s(path)
        async with crowd_of(3000, str(path), comes_back=True) as crowd:
            beside = await _took_s(path)
            assert (await crowd.count())[0] > 0, "some were sent away"
    # Where each that is sent away costs as much as one that is served, it is several hundred times.
    assert beside < 20 * alone


async def test_a_user_whose_connections_say_nothing_keeps_the_newest(data_dir: Path) -> None:
    async with connect_door(data_dir, pending=4, head_s=PATIENCE_S) as door, crowd_of(10, str(door.path)) as crowd:
        await _until(lambda: _has_lost(crowd, 6))
        assert (await crowd.count())[1] == 4
        # The control: another one of that user, which does say something, is served; and so is the operator.
        assert await _asked_by(NOBODY, door.path) == b"200"
        async with door.wire() as wire:
            assert (await wire.ask("WhoAmI")).status == 200


async def test_the_control_connections_that_have_said_something_are_kept(data_dir: Path) -> None:
    body = "POST /sandbox.v1.SandboxService/WhoAmI HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with connect_door(data_dir, pending=12) as door, crowd_of(10, str(door.path), says=body) as crowd:
        assert await _asked_by(NOBODY, door.path) == b"200", "and by then so are those before it"
        async with crowd_of(20, str(door.path)) as silent:
            await _until(lambda: _has_lost(silent, 8))
            assert await crowd.count() == (0, 10)


async def test_the_operators_connections_may_say_nothing(data_dir: Path) -> None:
    async with connect_door(data_dir, pending=4) as door, crowd_of(10, str(door.path), uid=os.geteuid()) as crowd:
        async with door.wire() as wire:
            assert (await wire.ask("WhoAmI")).status == 200
        assert await crowd.count() == (0, 10)


async def test_new_connections_of_a_user_have_a_rate_and_the_refusal_says_so(data_dir: Path) -> None:
    async with connect_door(data_dir, arrivals_per_s=1.0) as door:
        heard = [await _asked_by(NOBODY, door.path) for _ in range(3)]
        assert heard[0] == b"200"
        assert b"429" in heard[1:]
        for _ in range(3):
            async with door.wire() as wire:
                assert (await wire.ask("WhoAmI")).status == 200


ASKING = """
import http.client, os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
try:
    connection.request("POST", "/sandbox.v1.SandboxService/WhoAmI", "{}", {"content-type": "application/json"})
except BrokenPipeError:
    pass
print(connection.getresponse().status)
"""


async def _asked_by(uid: int, path: Path) -> bytes:
    asking = [sys.executable, "-c", ASKING, str(path), str(uid)]
    done = await asyncio.to_thread(subprocess.run, asking, capture_output=True, check=True, timeout=PATIENCE_S)
    return done.stdout.strip()


# The page of numbers.


async def _text() -> bytes:
    return b"k8e_up 1\n"


async def _page(address: str) -> int:
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        return (await http.get(address)).status_code


@pytest.mark.parametrize("uid", [NOBODY, 0])
async def test_connections_that_say_nothing_do_not_take_the_page_away(uid: int) -> None:
    async with serve(_text, "127.0.0.1", 0) as address:
        assert address is not None
        assert await _page(address) == 200
        place = address.removeprefix("http://").removesuffix("/metrics")
        async with crowd_of(40, place, uid=uid, comes_back=uid == NOBODY):
            assert [await _page(address) for _ in range(10)] == [200] * 10


async def test_one_that_is_about_to_ask_keeps_its_place_beside_another_users_crowd() -> None:
    async with serve(_text, "127.0.0.1", 0) as address:
        assert address is not None
        place = address.removeprefix("http://").removesuffix("/metrics")
        host, _, port = place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with crowd_of(40, place) as crowd:
            await _until(lambda: _has_lost(crowd, 1))
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                assert b"k8e_up 1" in await reader.read()
        writer.close()


# The agents' HTTP door.


async def test_another_users_crowd_does_not_take_the_agents_door(data_dir: Path) -> None:
    async with open_door(data_dir) as door, agents_door(door.target) as url:
        assert await _page(f"{url}/healthz") == 200
        async with crowd_of(1100, url.removeprefix("http://")) as crowd:
            assert await _page(f"{url}/healthz") == 200
            assert await _has_lost(crowd, 1)


async def test_one_user_has_a_share_of_the_agents_door(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.web.connections.CONNECTIONS_PER_PEER", 5)
    async with open_door(data_dir) as door, agents_door(door.target) as url:
        asking = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        async with crowd_of(8, url.removeprefix("http://"), says=asking) as crowd:
            await _until(lambda: _has_lost(crowd, 3))
            # The control: that is another's, who has none of them yet.
            assert await _page(f"{url}/healthz") == 200


# The gRPC door.


def _end(door: OpenDoor) -> tuple[str, int]:
    host, _, port = door.target.endpoint.rpartition(":")
    return host, int(port)


def _trusting(door: OpenDoor) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=door.credentials.ca.decode())
    context.set_alpn_protocols(["h2"])
    return context


async def test_another_users_crowd_does_not_drive_out_who_is_about_to_shake_hands(data_dir: Path) -> None:
    async with open_door(data_dir, settings=FrontSettings(connections=8)) as door:
        with socket.create_connection(_end(door), timeout=PATIENCE_S) as early:
            async with crowd_of(20, door.target.endpoint) as crowd:
                await _until(lambda: _has_lost(crowd, 13))
                shaken = await asyncio.to_thread(_trusting(door).wrap_socket, early, server_hostname="localhost")
                with shaken:
                    assert shaken.version() == "TLSv1.3"
                async with open_channel(door.target) as channel:
                    assert (await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())).via == "loopback"


async def test_one_user_has_a_share_of_the_grpc_door(data_dir: Path) -> None:
    async with (
        open_door(data_dir, settings=FrontSettings(connections_per_peer=2)) as door,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(2):
            channel = await stack.enter_async_context(open_channel(door.target))
            await SandboxStub(channel).WhoAmI(pb.WhoAmIRequest())
        reader, writer = await asyncio.open_connection(*_end(door))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        # The control: another user's has room.
        async with crowd_of(1, door.target.endpoint) as crowd:
            assert await crowd.count() == (0, 1)
