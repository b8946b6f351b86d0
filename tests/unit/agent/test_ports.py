"""Connections to ports inside: every byte both ways, each direction ends by itself, and a slow side stops the other."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from k8e.wire.aio import Data, Event, Link, RemoteError, Stream
from tests.support.agents import AgentRoot, dialled

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
BIG = 8 * 1024 * 1024
SLACK = 16 * 1024 * 1024
"""More than every buffer on the way together: the kernel's two, and the windows."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server in the agent's own network; its errors are its test's."""
    writers: list[asyncio.StreamWriter] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    async with await asyncio.start_server(tracked, host, 0) as server:
        yield server.sockets[0].getsockname()[1]
        # The server itself does not wait for its connections.
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def connected(link: Link, port: int, **more: object) -> Stream:
    stream = await link.open("tcp", {"port": port, **more})
    async with asyncio.timeout(PATIENCE_S):
        item = await stream.receive()
    assert isinstance(item, Event)
    assert item.name == "connected"
    return stream


async def next_bytes(stream: Stream) -> bytes:
    """The next piece, acknowledged; nothing at the end of that direction."""
    async with asyncio.timeout(PATIENCE_S):
        item = await stream.receive()
    if isinstance(item, Data):
        stream.ack(item.channel, item.offset + len(item.payload))
        return item.payload
    assert isinstance(item, Event)
    assert item.name == "eof"
    return b""


async def all_bytes(stream: Stream) -> bytes:
    pieces = []
    while piece := await next_bytes(stream):
        pieces.append(piece)
    return b"".join(pieces)


async def refusal(link: Link, **args: object) -> str:
    with pytest.raises(RemoteError) as refused:
        await link.call("tcp", args, timeout_s=PATIENCE_S)
    return refused.value.code


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("is_named", [True, False])
async def test_every_byte_goes_both_ways(link: Link, host: str, is_named: bool) -> None:
    content = os.urandom(BIG)
    async with serving(echo, host) as port:
        stream = await connected(link, port, **({"host": host} if is_named else {}))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(all_bytes(stream), name="read")
            await stream.send(0, content)
            await stream.finish(0)
        assert reading.result() == content
        assert await stream.receive() is None  # both directions are over: a good end


async def test_what_is_sent_before_the_connection_stands_is_not_lost(link: Link) -> None:
    async with serving(echo) as port:
        stream = await link.open("tcp", {"port": port})
        await stream.send(0, b"early")
        await stream.finish(0)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await stream.receive(), Event)
        assert await all_bytes(stream) == b"early"


async def test_the_servers_end_leaves_the_other_direction_open(link: Link) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all I have")
        writer.write_eof()
        heard.set_result(await reader.read())
        writer.close()

    async with serving(half) as port:
        stream = await connected(link, port)
        assert await all_bytes(stream) == b"all I have"
        await stream.send(0, b"still talking")
        await stream.finish(0)
        async with asyncio.timeout(PATIENCE_S):
            assert await heard == b"still talking"
            assert await stream.receive() is None


async def test_a_port_where_nobody_listens_is_refused(link: Link) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert await refusal(link, port=held.getsockname()[1]) == "refused"


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"port": 0},
        {"port": -1},
        {"port": 65536},
        {"port": "80"},
        {"port": True},
        {"port": 80, "host": "10.0.0.1"},
        {"port": 80, "host": "localhost"},
        {"port": 80, "host": 7},
    ],
    ids=str,
)
async def test_only_ports_on_loopback_can_be_asked_for(link: Link, args: dict[str, object]) -> None:
    assert await refusal(link, **args) == "invalid"


async def test_a_server_that_does_not_accept_costs_only_its_own_caller_the_wait(link: Link) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            waiting.append(sock)
        stream = await link.open("tcp", {"port": address[1]})
        async with serving(echo) as port:  # meanwhile the agent serves others
            other = await connected(link, port)
            await other.finish(0)
            assert await all_bytes(other) == b""
        with pytest.raises(RemoteError) as refused:
            async with asyncio.timeout(PATIENCE_S):
                await stream.receive()
        assert refused.value.code == "timed_out"
        for sock in waiting:
            sock.close()


async def test_a_reset_is_told_after_everything_that_came_before_it(link: Link) -> None:
    content = os.urandom(1024 * 1024)
    may_reset = asyncio.Event()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        await may_reset.wait()
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with serving(cut) as port:
        stream = await connected(link, port)
        got = bytearray()
        while len(got) < len(content) - 1000:
            got += await next_bytes(stream)
        may_reset.set()

        async def rest() -> None:
            while piece := await next_bytes(stream):
                got.extend(piece)

        with pytest.raises(RemoteError) as reset:
            await rest()
        assert reset.value.code == "reset"
        assert got == content


async def test_a_server_that_closes_while_it_is_written_to_resets(link: Link) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with serving(leave) as port:
        stream = await connected(link, port)

        async def write() -> None:
            while True:
                await stream.send(0, bytes(65536))

        with pytest.raises(RemoteError):
            async with asyncio.timeout(PATIENCE_S):
                await write()
        with pytest.raises(RemoteError) as reset:
            await all_bytes(stream)
        assert reset.value.code == "reset"


async def test_a_server_that_does_not_read_stops_whoever_writes(link: Link) -> None:
    may_read = asyncio.Event()
    heard = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await may_read.wait()
        while data := await reader.read(1 << 20):
            heard += len(data)
        writer.close()

    async with serving(slow) as port:
        stream = await connected(link, port)
        sent = 0

        async def write() -> None:
            nonlocal sent
            while sent < 2 * SLACK:
                await stream.send(0, bytes(65536))
                sent += 65536
            await stream.finish(0)

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(write(), name="write")
            await settled(lambda: sent)
            assert 0 < sent < SLACK
            may_read.set()
            assert await all_bytes(stream) == b""
        assert heard == sent == 2 * SLACK


async def test_an_engine_that_does_not_acknowledge_stops_the_server(link: Link) -> None:
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < 2 * SLACK:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536
        writer.close()

    async with serving(talk) as port:
        stream = await connected(link, port)
        async with asyncio.timeout(PATIENCE_S):
            await settled(lambda: sent)
            assert 0 < sent < SLACK
            await stream.finish(0)
            assert len(await all_bytes(stream)) == 2 * SLACK


async def settled(count: Callable[[], int]) -> None:
    """Wait until something has begun and stands still."""
    while True:
        before = count()
        await asyncio.sleep(0.3)
        if before and before == count():
            return


async def test_a_cancelled_stream_resets_the_connection(link: Link) -> None:
    ended = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ended.set_result(await reader.read())
        except ConnectionResetError:
            ended.set_result("reset")
        writer.close()

    async with serving(wait) as port:
        stream = await connected(link, port)
        await stream.send(0, b"half of it")
        await stream.cancel()
        async with asyncio.timeout(PATIENCE_S):
            assert await ended == "reset"


async def test_a_lost_link_closes_its_connections_and_frees_their_places(agent_root: AgentRoot, link: Link) -> None:
    gone = asyncio.Semaphore(0)

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            gone.release()
        writer.close()

    async with serving(wait) as port:
        for _ in range(256):
            await connected(link, port)
        assert await refusal(link, port=port) == "exhausted"
        await link.close()
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(256):
                await gone.acquire()
        async with dialled(agent_root) as again:
            for _ in range(256):
                await connected(again, port)
