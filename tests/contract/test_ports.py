"""Connections to servers inside a sandbox: every byte both ways, whatever isolates it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from k8e.engine import boxes
from k8e.engine.ports import PortConnection
from k8e.errors import Conflict, InvalidSpec, NotFound, SandboxLost
from k8e.model import OwnerId
from tests.support.cells import OWNER, Cell
from tests.support.servers_inside import ECHO, GREET_THEN_LISTEN, NEVER_READ, POUR, RESET, TELL_END, serve, settled

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SIZE = 5 * 1024 * 1024 + 17
SLACK = 16 * 1024 * 1024
"""More than every buffer on the way has room for, the kernel's included."""


async def opened(cell: Cell, port: int) -> PortConnection:
    return await cell.engine.open_port(OWNER, cell.id, port)


async def received(connection: PortConnection) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return b"".join([piece async for piece in connection])


async def content_of(cell: Cell, path: str) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await cell.read(path)
            except NotFound:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_every_byte_goes_to_a_server_inside_and_back(cell: Cell, address: str) -> None:
    port = await serve(cell.engine, cell.id, ECHO, address)
    content = os.urandom(SIZE)
    connection = await opened(cell, port)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(received(connection), name="receive")
        await connection.send(content)
        await connection.send_eof()
    assert reading.result() == content
    async with asyncio.timeout(PATIENCE_S):
        await connection.ended()
    await connection.close()


async def test_each_direction_ends_by_itself(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, GREET_THEN_LISTEN)
    connection = await opened(cell, port)
    assert await received(connection) == b"all I have"
    await connection.send(b"still ")
    await connection.send(b"talking")
    await connection.send_eof()
    async with asyncio.timeout(PATIENCE_S):
        await connection.ended()
    await connection.close()
    assert await content_of(cell, "heard") == b"still talking"


async def test_a_port_where_nobody_listens_says_what_to_do(cell: Cell) -> None:
    with pytest.raises(Conflict, match="nothing listens on port 9 inside: start the server first"):
        await opened(cell, 9)


@pytest.mark.parametrize("port", [0, -1, 65536, 2**40])
async def test_what_is_no_port_is_refused(cell: Cell, port: int) -> None:
    with pytest.raises(InvalidSpec, match="port: must be 1-65535"):
        await opened(cell, port)


async def test_a_session_of_somebody_else_is_not_found(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, ECHO)
    with pytest.raises(NotFound):
        await cell.engine.open_port(OwnerId("uid:4711"), cell.id, port)
    await (await opened(cell, port)).close()


async def test_a_server_that_resets_ends_the_connection_with_an_error(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, RESET)
    connection = await opened(cell, port)
    await connection.send(b"x")
    with pytest.raises(Conflict, match=f"the server on port {port} inside has closed the connection"):
        await received(connection)
    with pytest.raises(Conflict):
        await connection.send(b"more")
    await connection.close()


async def test_a_server_that_does_not_read_stops_whoever_sends(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, NEVER_READ)
    connection = await opened(cell, port)
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
        await cell.write("may-read", b"")
        assert await received(connection) == b"%d" % (2 * SLACK)
    await connection.close()


async def test_a_caller_that_does_not_receive_stops_the_server(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, POUR.format(size=2 * SLACK))
    connection = await opened(cell, port)
    assert await connection.receive()
    sent, before = int(await content_of(cell, "sent")), 0
    async with asyncio.timeout(PATIENCE_S):
        while sent != before:
            await asyncio.sleep(0.5)
            sent, before = int(await content_of(cell, "sent")), sent
    assert sent < SLACK
    total = 0
    async with asyncio.timeout(PATIENCE_S):
        async for piece in connection:
            total += len(piece)
            assert len(piece) <= 1024 * 1024
    assert total > SLACK
    await connection.close()


async def test_hanging_up_resets_the_connection_inside(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, TELL_END)
    connection = await opened(cell, port)
    assert await connection.receive() == b"hello"
    await connection.close()
    assert await content_of(cell, "end") == b"reset"
    with pytest.raises(Conflict, match="is closed"):
        await connection.send(b"x")


async def test_saying_eof_first_is_an_end_and_no_reset(cell: Cell) -> None:
    port = await serve(cell.engine, cell.id, TELL_END)
    connection = await opened(cell, port)
    assert await connection.receive() == b"hello"
    await connection.send_eof()
    assert await connection.receive() == b""
    await connection.close()
    assert await content_of(cell, "end") == b"eof"


async def test_a_sandbox_that_dies_takes_its_connections_along(
    cell: Cell, kill_sandbox: Callable[[Cell], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to report a death than a caller would be kept waiting for it.
    monkeypatch.setattr(boxes, "_DYING_S", PATIENCE_S)
    port = await serve(cell.engine, cell.id, TELL_END)
    connection = await opened(cell, port)
    assert await connection.receive() == b"hello"
    kill_sandbox(cell)
    with pytest.raises(SandboxLost):
        await received(connection)
    await connection.close()
