"""The JSON door's place, its end, and who is known behind it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.doors.connect import Bounds, serve
from k8e.errors import Conflict
from tests.support.connect import ConnectDoor, Wire, connect_door
from tests.support.door import OpenDoor, open_door
from tests.support.inside import exists, gone, said

pytestmark = pytest.mark.anyio

NOBODY = 65534
PATIENCE_S = 60.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
async def door(data_dir: Path) -> AsyncIterator[ConnectDoor]:
    async with connect_door(data_dir) as door:
        yield door


@pytest.fixture
async def wire(door: ConnectDoor) -> AsyncIterator[Wire]:
    async with door.wire() as wire:
        yield wire


@pytest.fixture
async def behind(data_dir: Path) -> AsyncIterator[OpenDoor]:
    """The service, without this door."""
    async with open_door(data_dir) as behind:
        yield behind


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if "sock" in path.name)


async def answers(path: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        return (await Wire(reader, writer).ask("WhoAmI")).status == 200
    finally:
        writer.close()


async def test_everybody_may_connect_and_nothing_is_left_afterwards(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    async with serve(behind.edge, path=path) as address:
        assert address == f"unix://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert names(data_dir) == ["k8e.sock"]
        assert await answers(path)
    assert names(data_dir) == []


async def test_a_dead_servers_socket_is_replaced(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with serve(behind.edge, path=path):
        assert await answers(path)


async def test_a_living_servers_socket_is_left_to_it(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    async with serve(behind.edge, path=path):
        with pytest.raises(Conflict, match="another server listens"):
            async with serve(behind.edge, path=path):
                pytest.fail("two doors in one place")
        assert await answers(path)
    assert names(data_dir) == []


async def test_a_file_in_the_way_is_not_removed(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    path.write_text("precious")
    with pytest.raises(Conflict, match="in the way"):
        async with serve(behind.edge, path=path):
            pytest.fail("a file is no place for a door")
    assert path.read_text() == "precious"


async def test_a_socket_that_somebody_put_in_our_place_is_left_at_the_end(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    async with serve(behind.edge, path=path):
        path.unlink()
        path.write_text("not ours")
    assert path.read_text() == "not ours"


async def test_a_deep_data_directory_is_no_hindrance(behind: OpenDoor, data_dir: Path) -> None:
    deep = data_dir / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with serve(behind.edge, path=deep / "k8e.sock"):
        directory = os.open(deep, os.O_PATH)
        try:
            assert await answers(Path(f"/proc/self/fd/{directory}/k8e.sock"))
        finally:
            os.close(directory)


async def begun(path: Path, pid_file: Path, command: str) -> tuple[Wire, int]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    wire = Wire(reader, writer)
    session_id = (await wire.ask("CreateSession")).json["session_id"]
    request = {"session_id": session_id, "command": f"echo $$ > {pid_file}; {command}"}
    await wire.begin("Exec", "application/json", json.dumps(request).encode())
    return wire, await said(pid_file)


async def test_a_running_call_may_finish_when_the_door_closes(behind: OpenDoor, data_dir: Path) -> None:
    path, gate, cut = data_dir / "k8e.sock", data_dir / "gate", []
    patient = Bounds(drain_s=PATIENCE_S)
    async with serve(behind.edge, path=path, bounds=patient, undrained=lambda: cut.append(True)):
        waiting = f"until [ -e {gate} ]; do sleep 0.01; done; echo done"
        wire, _ = await begun(path, data_dir / "pid", waiting)
        gate.touch()
    reply = await wire.reply()
    assert (reply.json["stdout"], reply.headers["connection"], cut) == ("done\n", "close", [])
    wire.writer.close()


async def test_a_caller_that_is_slow_to_read_gets_all_of_the_last_answer_when_the_door_closes(
    behind: OpenDoor, data_dir: Path
) -> None:
    path, size = data_dir / "k8e.sock", 1_000_000
    bounds = Bounds(drain_s=PATIENCE_S, last_words_s=PATIENCE_S)
    async with serve(behind.edge, path=path, bounds=bounds):
        wire, _ = await begun(path, data_dir / "pid", f"head -c {size} /dev/zero | tr '\\0' x")
        reading = asyncio.ensure_future(slowly(wire.reader))
    assert b"x" * size in await reading
    wire.writer.close()


async def slowly(reader: asyncio.StreamReader) -> bytes:
    read = bytearray()
    while piece := await reader.read(4096):
        read += piece
        await asyncio.sleep(0.002)
    return bytes(read)


async def test_a_call_that_goes_on_too_long_is_left_or_cancelled(behind: OpenDoor, data_dir: Path) -> None:
    path, seen = data_dir / "k8e.sock", []
    async with serve(
        behind.edge,
        path=path,
        bounds=Bounds(drain_s=0.1),
        # Here the server would leave, and the command would go on: it is still there now.
        undrained=lambda: seen.append(exists(pid)),
    ):
        wire, pid = await begun(path, data_dir / "pid", "exec sleep 600")
    assert seen == [True]
    assert await wire.end() == b""
    await gone(pid)
    wire.writer.close()


async def test_a_crowd_that_comes_at_once_is_served(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    async with serve(behind.edge, path=path, bounds=Bounds(connections=400, head_s=PATIENCE_S)):
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(300)]
        for caller in crowd:  # none is accepted meanwhile: the loop is ours
            caller.setblocking(False)
            caller.connect(str(path))
        for caller in crowd:
            wire = Wire(*await asyncio.open_unix_connection(sock=caller))
            assert (await wire.ask("WhoAmI")).status == 200
            wire.writer.close()


async def test_idle_connections_do_not_hold_the_door_open(behind: OpenDoor, data_dir: Path) -> None:
    path = data_dir / "k8e.sock"
    cut: list[bool] = []
    async with serve(behind.edge, path=path, undrained=lambda: cut.append(True)):
        reader, writer = await asyncio.open_unix_connection(str(path))
        wire = Wire(reader, writer)
        assert (await wire.ask("WhoAmI")).status == 200
    assert (await wire.end(), cut) == (b"", [])
    writer.close()


# Who is there.


async def test_a_caller_is_the_user_that_connected(wire: Wire) -> None:
    me = f"uid:{os.geteuid()}"
    told = (await wire.ask("WhoAmI")).json
    assert (told["owner"], told["identity"], told["role"], told["via"]) == (me, me, "admin", "unix")


async def test_a_key_that_is_presented_wins(door: ConnectDoor, wire: Wire) -> None:
    created = (await wire.ask("CreateApiKey", {"name": "phone"})).json
    text = next(value for value in created.values() if isinstance(value, str) and len(value) >= 64)
    told = (await wire.ask("WhoAmI", authorization=f"Bearer {text}")).json
    assert (told["owner"], told["identity"], told["via"]) == ("key:phone", "key:phone", "key")


@pytest.mark.parametrize("authorization", ["Bearer wrong", "Bearer ", "", "Basic eDp5", "Bearer a, Bearer b"])
async def test_a_key_that_is_not_good_is_nobodys(wire: Wire, authorization: str) -> None:
    assert (await wire.ask("WhoAmI")).status == 200
    reply = await wire.ask("WhoAmI", authorization=authorization)
    assert (reply.status, reply.json["code"], reply.headers["k8e-error"]) == (401,) + ("unauthenticated",) * 2
    streamed = await wire.ask_stream("ExecStream", {}, authorization=authorization)
    assert streamed.end["error"]["code"] == "unauthenticated"


async def test_an_administrator_speaks_for_another_owner_by_naming_it(wire: Wire) -> None:
    theirs = (await wire.ask("CreateSession", k8e_owner="uid:7")).json["session_id"]
    seen = [each["session_id"] for each in (await wire.ask("ListSessions", k8e_owner="uid:7")).json["sessions"]]
    mine = (await wire.ask("ListSessions")).json["sessions"]
    assert (seen, mine) == ([theirs], [])


CALLER = """
import contextlib, http.client, json, os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})

def ask(rpc, request, **headers):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(sys.argv[1])
    # A caller that is refused by its head is answered before its body has come.
    with contextlib.suppress(BrokenPipeError):
        connection.request("POST", "/sandbox.v1.SandboxService/" + rpc, json.dumps(request),
                           {{"content-type": "application/json", **headers}})
    reply = connection.getresponse()
    told = reply.status, json.loads(reply.read())
    connection.close()
    return told

mine = ask("CreateSession", {{}})[1]["session_id"]
print(json.dumps({{
    "who": ask("WhoAmI", {{}})[1]["owner"],
    "theirs": ask("GetSession", {{"session_id": sys.argv[2]}}),
    "exec in theirs": ask("Exec", {{"session_id": sys.argv[2], "command": "true"}}),
    "as them": ask("ListSessions", {{}}, **{{"k8e-owner": "uid:0"}})[0],
    "stop": ask("StopServer", {{}})[0],
    "listed": [each["session_id"] for each in ask("ListSessions", {{}})[1]["sessions"]] == [mine],
    "own": ask("GetSession", {{"session_id": mine}})[0],
}}))
"""


@needs_root
async def test_another_user_is_another_owner_and_sees_nothing(door: ConnectDoor, wire: Wire) -> None:
    mine = (await wire.ask("CreateSession")).json["session_id"]
    assert (await wire.ask("GetSession", {"session_id": mine})).status == 200
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER.format(nobody=NOBODY), str(door.path), mine, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()
    not_found = [404, {"code": "not_found", "message": f"session {mine} not found"}]
    assert json.loads(said) == {
        "who": f"uid:{NOBODY}",
        "theirs": not_found,
        "exec in theirs": not_found,
        "as them": 403,
        "stop": 403,
        "listed": True,
        "own": 200,
    }
    assert not door.door.stopped.is_set()
    assert [each["session_id"] for each in (await wire.ask("ListSessions")).json["sessions"]] == [mine]
