"""Servers inside a sandbox, reached by the SDK: over the socket and over TLS, with a loop and without one."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from k8e.client import (
    AsyncSandboxClient,
    AsyncSession,
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxClient,
    SandboxError,
    Session,
)
from k8e.client.discovery import Target
from tests.support.eventually import eventually
from tests.support.servers_inside import ECHO, GREET_THEN_LISTEN, NEVER_READ, POUR, RESET, TELL_END, program, settled

PATIENCE_S = 60.0
SIZE = 3 * 1024 * 1024 + 5
SLACK = 32 * 1024 * 1024
"""More than every buffer on the way has room for."""


def serving(session: Session, body: str) -> int:
    """The port of a server inside."""
    run = session.background(program(body), "python")
    assert eventually(lambda: run.poll().stdout.endswith("\n"))
    return int(run.poll().stdout)


async def serving_async(session: AsyncSession, body: str) -> int:
    run = await session.background(program(body), "python")
    async with asyncio.timeout(PATIENCE_S):
        while not (said := (await run.poll()).stdout).endswith("\n"):
            await asyncio.sleep(0.02)
    return int(said)


def kept(session: Session, name: str) -> bytes:
    """What a server inside has written down."""

    def is_there() -> bool:
        try:
            session.files.stat(name)
        except NotFound:
            return False
        return True

    assert eventually(is_there)
    return session.files.read_bytes(name)


@asynccontextmanager
async def a_session(target: Target) -> AsyncIterator[AsyncSession]:
    async with AsyncSandboxClient(target=target) as client, await client.create() as session:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield session


@pytest.mark.anyio
async def test_every_byte_goes_both_ways(target: Target) -> None:
    content = os.urandom(SIZE)
    async with a_session(target) as session, await session.open_port(await serving_async(session, ECHO)) as connection:
        got = bytearray()

        async def receive() -> None:
            while piece := await connection.receive():
                got.extend(piece)

        async with asyncio.TaskGroup() as group:
            group.create_task(receive(), name="receive")
            await connection.send(content)
            await connection.send_eof()
        assert got == content
        assert await connection.receive() == b""
        with pytest.raises(ValueError, match="after send_eof"):
            await connection.send(b"x")


def test_what_is_sent_after_the_servers_end_arrives(session: Session) -> None:
    with session.open_port(serving(session, GREET_THEN_LISTEN)) as connection:
        assert connection.receive() == b"all I have"
        assert connection.receive() == b""
        connection.send(b"still talking")
        connection.send_eof()
    assert kept(session, "heard") == b"still talking"


def test_closing_without_eof_is_a_reset_inside(session: Session) -> None:
    connection = session.open_port(serving(session, TELL_END))
    assert connection.receive() == b"hello"
    connection.close()
    connection.close()
    assert kept(session, "end") == b"reset"


def test_closing_wakes_whoever_receives(session: Session) -> None:
    connection = session.open_port(serving(session, NEVER_READ))
    heard: list[BaseException] = []

    def receive() -> None:
        try:
            connection.receive()
        except SandboxError as error:
            heard.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    connection.close()  # whether it waits by now or asks later, it hears the same
    thread.join(PATIENCE_S)
    assert [type(each) for each in heard] == [Conflict]


def test_a_reset_inside_is_heard_by_whoever_receives_and_by_whoever_only_sends(session: Session) -> None:
    port = serving(session, RESET)
    with session.open_port(port) as connection:
        connection.send(b"x")
        with pytest.raises(Conflict, match="inside has closed the connection"):
            connection.receive()
    with session.open_port(port) as connection, pytest.raises(Conflict):
        connection.send(bytes(2 * SLACK))


@pytest.mark.parametrize("port", [0, 65536, -3])
def test_what_is_no_port_is_refused(session: Session, port: int) -> None:
    with pytest.raises(InvalidRequest, match=r"start.port: must be 1-65535"):
        session.open_port(port)


def test_refusals_say_what_to_do(client: SandboxClient, session: Session) -> None:
    with pytest.raises(Conflict, match="nothing listens on port 9 inside: start the server first"):
        session.open_port(9)
    with pytest.raises(NotFound):
        client.open_port("no-such-session", 80)


@pytest.mark.anyio
async def test_a_server_that_does_not_read_stops_whoever_sends(target: Target) -> None:
    async with (
        a_session(target) as session,
        await session.open_port(await serving_async(session, NEVER_READ)) as connection,
    ):
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < 2 * SLACK:
                await connection.send(bytes(65536))
                sent += 65536
            await connection.send_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(send(), name="send")
            assert await settled(lambda: sent) < SLACK
            await session.files.mkdir("may-read")
            assert int(await connection.receive()) == 2 * SLACK


@pytest.fixture
def page(session: Session) -> Iterator[int]:
    """The port of a real HTTP server inside, which serves the workspace."""
    session.files.write("page.txt", "a page from inside")
    run = session.start("exec python3 -u -m http.server 0 --bind 127.0.0.1")
    assert eventually(lambda: " port " in run.poll().stdout)
    yield int(run.poll().stdout.split(" port ")[1].split()[0])
    run.kill()


def fetched(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_forwarded_http_server_answers_on_a_local_port(session: Session, page: int) -> None:
    with session.forward(page) as forward:
        assert forward.port != 0
        assert fetched(forward.port, "/page.txt") == (200, b"a page from inside")
        assert fetched(forward.port, "/no-such")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S)


def test_many_connections_go_through_one_forward_at_once(session: Session) -> None:
    content = os.urandom(SIZE)
    answers: list[bytes] = []

    def exchange(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:

            def send() -> None:
                peer.sendall(content)
                peer.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            got = bytearray()
            while piece := peer.recv(65536):
                got += piece
            sending.join()
            answers.append(bytes(got))

    with session.forward(serving(session, ECHO)) as forward:
        threads = [threading.Thread(target=exchange, args=(forward.port,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert answers == [content] * 4


def test_a_refused_port_costs_one_connection_and_not_the_forward(session: Session) -> None:
    heard: list[str] = []
    with socket.socket() as held:
        # Bare sandboxes have the host's network: held here and not listened at, it is nobody's inside either.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with session.forward(port, on_error=lambda error: heard.append(str(error))) as forward:
            peer = socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S)
            with peer, pytest.raises(ConnectionResetError):
                peer.recv(1)
            assert f"nothing listens on port {port} inside" in heard[0]
            # Started now, the server is reached through the same forward.
            code = f"""
import socket
listener = socket.create_server(("127.0.0.1", {port}))
print("ready", flush=True)
peer, _ = listener.accept()
peer.sendall(b"here now")
"""
            run = session.background(code, "python")
            assert eventually(lambda: run.poll().stdout == "ready\n")
            with socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S) as peer:
                assert peer.recv(100) == b"here now"


def test_a_local_client_that_is_cut_resets_the_connection_inside(session: Session) -> None:
    with session.forward(serving(session, TELL_END)) as forward:
        peer = socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S)
        assert peer.recv(100) == b"hello"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        assert kept(session, "end") == b"reset"


def test_closing_a_forward_cuts_what_goes_through_it(session: Session) -> None:
    forward = session.forward(serving(session, TELL_END))
    with socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S) as peer:
        assert peer.recv(100) == b"hello"
        forward.close()
        forward.close()
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
    assert kept(session, "end") == b"reset"


def test_a_local_client_that_does_not_read_stops_the_server_inside(session: Session) -> None:
    with (
        session.forward(serving(session, POUR.format(size=2 * SLACK))) as forward,
        socket.create_connection(("127.0.0.1", forward.port), timeout=PATIENCE_S) as peer,
    ):
        seen, sent = -1, int(kept(session, "sent"))
        while seen != sent:
            time.sleep(0.5)
            seen, sent = sent, int(kept(session, "sent"))
        assert sent < SLACK
        total = 0
        while piece := peer.recv(1 << 20):
            total += len(piece)
        assert total == 2 * SLACK


def test_a_local_port_that_is_taken_is_an_error_of_this_machine(session: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        session.forward(80, taken.getsockname()[1])
