"""Loopback callers are known by the kernel's word for their very connection, and nobody else is."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.identity import LoopbackIdentifier, TcpPeer, local_caller, uid_owner
from k8e.identity.sockdiag import SocketTable
from tests.support.door import open_door

NOBODY = 65534


@pytest.fixture
def table() -> Iterator[SocketTable]:
    with closing(SocketTable()) as table:
        yield table


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((request.param, 0))
        listening.listen()
        yield listening


def dial(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    host, port = listener.getsockname()[:2]
    client = socket.create_connection((host, port))
    served, _ = listener.accept()
    return client, served


def ends(sock: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    return sock.getsockname()[:2], sock.getpeername()[:2]


def test_an_established_connection_has_its_makers_uid(table: SocketTable, listener: socket.socket) -> None:
    client, served = dial(listener)
    with client, served:
        source, target = ends(client)
        assert table.uid_of(source=source, target=target) == os.geteuid()


def test_an_ipv4_connection_through_an_ipv6_socket_is_known_too(table: SocketTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET6) as client:
        port = listener.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        source = ("127.0.0.1", client.getsockname()[1])
        assert table.uid_of(source=source, target=("127.0.0.1", port)) == os.geteuid()


def test_a_closed_socket_that_the_kernel_shows_as_root_is_nobody(table: SocketTable, listener: socket.socket) -> None:
    client, served = dial(listener)
    with served:
        source, target = ends(client)
        assert table.uid_of(source=source, target=target) == os.geteuid()  # the control: known while it is open
        client.close()
        assert table.uid_of(source=source, target=target) is None


def test_an_orphan_with_unsent_data_is_nobody(table: SocketTable, listener: socket.socket) -> None:
    client, served = dial(listener)
    with served:
        source, target = ends(client)
        client.setblocking(False)
        while True:  # until neither side's buffer takes more, so that closing leaves an orphan behind
            try:
                client.send(bytes(65536))
            except BlockingIOError:
                break
        client.close()
        assert table.uid_of(source=source, target=target) is None


def test_the_listening_socket_never_answers_for_a_connection(table: SocketTable, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    assert table.uid_of(source=(host, port), target=(host, 1)) is None


def test_a_connection_to_another_port_is_not_taken_for_this_one(table: SocketTable, listener: socket.socket) -> None:
    client, served = dial(listener)
    with client, served:
        source, (host, port) = ends(client)
        assert table.uid_of(source=source, target=(host, port)) is not None
        assert table.uid_of(source=source, target=(host, port ^ 1)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_no_one_is_known_behind_an_address_that_is_not_loopback(table: SocketTable, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client, served = dial(listener)
        with client, served:
            source, target = ends(client)
            identifier = LoopbackIdentifier(table, operator=os.geteuid())
            me = local_caller(os.geteuid(), operator=os.geteuid(), via="loopback")
            assert identifier.identify(TcpPeer(source, target)) == me
            assert identifier.identify(TcpPeer(source, (host, target[1]))) is None
            assert identifier.identify(TcpPeer(("192.0.2.1", source[1]), target)) is None


CALLER = """
import asyncio, os, sys
from pathlib import Path
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
from k8e.client import AsyncSandboxClient, NotFound
from k8e.client.discovery import Target

async def main():
    target = Target(endpoint=sys.argv[1], found="test", roots=sys.stdin.buffer.read())
    async with AsyncSandboxClient(target=target) as client:
        try:
            await client.get(sys.argv[2])
        except NotFound:
            print("not found")
        print(len(await client.sessions("all")), (await client.create_session()) != "")

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.anyio
async def test_another_user_is_another_owner(tmp_path: Path) -> None:
    async with open_door(tmp_path) as door, open_channel(door.target) as channel:
        stub = SandboxStub(channel)
        mine = (await stub.CreateSession(pb.CreateSessionRequest())).session_id
        assert (await stub.GetSession(pb.GetSessionRequest(session_id=mine))).session_id == mine
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CALLER.format(nobody=NOBODY),
            door.target.endpoint,
            mine,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        said, _ = await process.communicate(door.target.roots)
        assert said.decode().split() == ["not", "found", "0", "True"]
        assert [each.session_id for each in (await stub.ListSessions(pb.ListSessionsRequest())).sessions] == [mine]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::"])
@pytest.mark.anyio
async def test_callers_over_any_loopback_address_are_the_same_owner(tmp_path: Path, host: str) -> None:
    async with open_door(tmp_path, host=host) as door:
        # A wildcard is dialled by a loopback address; the accepted connection still has two exact ends.
        port = door.target.endpoint.rpartition(":")[2]
        dialled = {"0.0.0.0": f"127.0.0.1:{port}", "::": f"[::1]:{port}"}.get(host, door.target.endpoint)
        async with open_channel(dataclasses.replace(door.target, endpoint=dialled)) as channel:
            made = await SandboxStub(channel).CreateSession(pb.CreateSessionRequest())
        owner = uid_owner(os.geteuid())
        assert [view.session_id for view in door.engine.list_sessions(owner)] == [made.session_id]


@pytest.mark.anyio
async def test_a_stranger_is_refused_before_anything_happens(tmp_path: Path) -> None:
    async with open_door(tmp_path, loopback=False) as door, open_channel(door.target) as channel:
        with pytest.raises(aio.AioRpcError) as caught:
            await SandboxStub(channel).CreateSession(pb.CreateSessionRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await door.machine.survivors() == frozenset()
    async with open_door(tmp_path) as door, open_channel(door.target) as channel:
        assert (await SandboxStub(channel).CreateSession(pb.CreateSessionRequest())).session_id


def test_a_connection_reset_by_its_maker_is_nobody(table: SocketTable, listener: socket.socket) -> None:
    client, served = dial(listener)
    with served:
        source, target = ends(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert table.uid_of(source=source, target=target) is None
