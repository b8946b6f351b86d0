"""The engine's end on a real socket: hello or nothing, and a lost link wakes everybody."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from k8e.wire import frames
from k8e.wire.aio import Data, Link, LinkLost, ProtocolError, RemoteError
from tests.support.credentials import CREDENTIALS

pytestmark = pytest.mark.anyio

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE_S = 60.0
HELLO = frames.frame(0, frames.HELLO, b'{"version":1}')


@asynccontextmanager
async def peer(path: Path, talk: Talk) -> AsyncIterator[Path]:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            await talk(reader, writer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield path
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def saying(blob: bytes, *, stays: bool = True) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(blob)
        await writer.drain()
        if stays:
            await reader.read()

    return talk


async def test_a_dial_returns_with_the_hello(tmp_path: Path) -> None:
    async with (
        peer(tmp_path / "s", saying(HELLO)) as path,
        await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link,
    ):
        assert link.hello == {"version": 1}


@pytest.mark.parametrize(
    ("blob", "stays", "error"),
    [
        (b"", True, TimeoutError),
        (b"", False, ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\n", True, ProtocolError),
        (frames.frame(1, frames.END, b'{"result":{}}'), True, ProtocolError),
    ],
)
async def test_no_hello_no_link(tmp_path: Path, blob: bytes, stays: bool, error: type[Exception]) -> None:
    async with peer(tmp_path / "s", saying(blob, stays=stays)) as path:
        with pytest.raises(error):
            await Link.dial(path, CREDENTIALS, timeout_s=0.1 if error is TimeoutError else PATIENCE_S)


async def test_nobody_listening_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await Link.dial(tmp_path / "nothing", CREDENTIALS, timeout_s=PATIENCE_S)


async def test_a_lost_link_wakes_whoever_waits(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        await reader.readexactly(10)

    async with peer(tmp_path / "s", talk) as path, await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link:
        stream = await link.open("x", {})
        with pytest.raises(LinkLost):
            await stream.receive()
        await link.closed()
        with pytest.raises(LinkLost):
            await link.open("x", {})


async def test_a_sender_waits_for_the_window(tmp_path: Path) -> None:
    async with (
        peer(tmp_path / "s", saying(HELLO)) as path,
        await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link,
    ):
        stream = await link.open("x", {})
        await stream.send(0, b"x" * 256 * 1024)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await stream.send(0, b"one too many")


async def test_a_call_without_an_answer_times_out(tmp_path: Path) -> None:
    async with (
        peer(tmp_path / "s", saying(HELLO)) as path,
        await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link,
    ):
        with pytest.raises(TimeoutError):
            await link.call("x", timeout_s=0.05)


async def test_a_request_that_fits_no_frame_is_refused_here(tmp_path: Path) -> None:
    async with (
        peer(tmp_path / "s", saying(HELLO)) as path,
        await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link,
    ):
        with pytest.raises(ValueError, match="frame limit"):
            await link.open("exec", {"code": "x" * 2_000_000})


async def test_single_bytes_that_nobody_receives_cost_little_more_than_their_size(tmp_path: Path) -> None:
    count = 20_000
    sent = b"".join(
        frames.data_head(1, channel, offset, 1) + b"%d" % channel for offset in range(count) for channel in (1, 2)
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        await reader.readuntil(b'"op"')
        writer.write(sent + frames.frame(1, frames.END, b'{"error":{"code":"over","message":""}}'))
        await writer.drain()

    async with peer(tmp_path / "s", talk) as path, await Link.dial(path, CREDENTIALS, timeout_s=PATIENCE_S) as link:
        stream = await link.open("x", {})
        tracemalloc.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await link.closed()  # by then all has come
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        received = {1: b"", 2: b""}
        with suppress(RemoteError):
            while isinstance(item := await stream.receive(), Data):
                assert item.offset == len(received[item.channel])
                received[item.channel] += item.payload
        assert received == {1: b"1" * count, 2: b"2" * count}
        assert held < 10 * 2 * count
