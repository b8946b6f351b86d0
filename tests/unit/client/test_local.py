"""The way through the unix socket, beside servers that do what they like with it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.client import AsyncSandboxClient, Chunk, retries
from k8e.client.discovery import Target
from k8e.client.errors import DeadlineExceeded, NotFound, SandboxError, SandboxLost, ServerFailed, Unreachable
from k8e.client.light.calls import QUICK_S
from k8e.client.light.http import envelope
from k8e.client.light.unix import END_OF_STREAM
from k8e.client.local import channel
from tests.support.descriptors import descriptors, opened_and_kept

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

OUTPUT = pb.ExecOutput(chunk=pb.OutputChunk(channel=pb.OUTPUT_CHANNEL_STDOUT, data=b"x" * 1000))
STREAMED = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+proto\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(path: Path, serve: Serve) -> AsyncIterator[AsyncSandboxClient]:
    """A client of a server that is nothing but this."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(served, path)
    async with server, AsyncSandboxClient(target=target_at(path)) as client:
        yield client


def target_at(path: Path) -> Target:
    return Target(endpoint="127.0.0.1:1", found="the test", socket=str(path))


def saying(*pieces: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
        await writer.drain()

    return serve


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_one_answer_that_comes_in_single_bytes_is_one_answer(tmp_path: Path) -> None:
    answer = whole("200 OK", pb.WhoAmIResponse(owner="uid:7").SerializeToString())

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(len(answer)):
            writer.write(answer[at : at + 1])
            await asyncio.sleep(0)

    async with serving(tmp_path / "sock", slowly) as client:
        assert (await client.whoami()).owner == "uid:7"


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (b"", Unreachable, "closed"),
        (b"hello\r\n\r\n", Unreachable, "does not speak HTTP"),
        (b"x" * 1_000_000, Unreachable, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", Unreachable, "closed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", Unreachable, "99999999999 bytes are announced"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", Unreachable, "announced"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", Unreachable, "'zz' is announced as a size"),
        (whole("500 Broken", b"<html>"), ServerFailed, "<html>"),
        (whole("500 Broken", b'["no object"]'), ServerFailed, "no object"),
        (whole("404 Not Found", b'{"code":"never_heard_of","message":"odd"}'), ServerFailed, "odd"),
        (whole("429 X", b'{"code":"resource_exhausted","message":"full"}'), SandboxError, "full"),
    ],
    ids=["nothing", "no-http", "endless-head", "short", "huge", "negative", "no-size", "html", "list", "code", "full"],
)
async def test_what_no_server_of_ours_says_is_an_error_with_a_name(
    tmp_path: Path, said: bytes, error: type[SandboxError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BUDGET_S", 0.5)
    async with serving(tmp_path / "sock", saying(said)) as client:
        with pytest.raises(error, match=text):
            await client.whoami()


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (STREAMED + chunk(envelope(OUTPUT.SerializeToString())), "closed"),
        (STREAMED + b"0\r\n\r\n", "ended before its end"),
        (STREAMED + chunk(b"\x00\xff\xff\xff\xff"), "was announced"),
    ],
    ids=["cut", "no-end", "huge"],
)
async def test_a_stream_that_is_cut_is_not_taken_for_a_whole_one(tmp_path: Path, said: bytes, text: str) -> None:
    async with serving(tmp_path / "sock", saying(said)) as client:
        with pytest.raises(Unreachable, match=text):
            async for _ in client.attach_exec("sess-1", "exec-1"):
                pass


@pytest.mark.parametrize(
    ("last", "error", "text"),
    [
        (b"nonsense", ServerFailed, "nonsense"),
        (b"[]", ServerFailed, "no object"),
        (b'{"error": 7}', ServerFailed, "no reason"),
        (b'{"error": {"code": "not_found", "message": "gone"}}', NotFound, "gone"),
        (
            b'{"error": {"code": "odd", "message": "new"}, "metadata": {"k8e-error": ["sandbox_lost"]}}',
            SandboxLost,
            "new",
        ),
    ],
)
async def test_a_stream_ends_well_only_when_its_last_word_says_so(
    tmp_path: Path, last: bytes, error: type[SandboxError], text: str
) -> None:
    for end, wanted in ((last, error), (b"{}", None)):
        said = STREAMED + chunk(envelope(OUTPUT.SerializeToString()) + envelope(end, END_OF_STREAM)) + b"0\r\n\r\n"
        async with serving(tmp_path / f"sock-{wanted is None}", saying(said)) as client:
            items = client.attach_exec("sess-1", "exec-1")
            assert isinstance(await anext(items), Chunk)
            with pytest.raises(wanted or StopAsyncIteration, match=text if wanted else None):
                await anext(items)


async def test_an_answer_is_read_though_the_server_stopped_listening_before_all_was_sent(tmp_path: Path) -> None:
    refused = whole("403 No", b'{"code":"permission_denied","message":"not you"}')
    over = asyncio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refused)
        await writer.drain()
        writer.transport.abort()
        over.set()

    async def late() -> AsyncIterator[bytes]:
        yield b"x"
        await over.wait()
        for _ in range(100):
            yield b"x" * 100_000

    async with serving(tmp_path / "sock", hasty) as client:
        with pytest.raises(SandboxError, match="not you"):
            await client.write_file("sess-1", "/workspace/a", late())


async def test_nobody_there_is_told_as_never_sent_and_a_lost_call_as_perhaps(tmp_path: Path) -> None:
    async with AsyncSandboxClient(target=target_at(tmp_path / "none")) as client:
        with pytest.raises(Unreachable, match="No such file") as absent:
            await client.create_session()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    async with AsyncSandboxClient(target=target_at(tmp_path / "dead")) as client:
        with pytest.raises(Unreachable, match="refused") as refused:
            await client.create_session()
    async with serving(tmp_path / "sock", saying(b"")) as client:
        with pytest.raises(Unreachable) as lost:
            await client.create_session()
    assert (absent.value.was_sent, refused.value.was_sent, lost.value.was_sent) == (False, False, True)


async def test_a_server_that_has_no_room_for_a_connection_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "full")
    answer = whole("200 OK", pb.WhoAmIResponse(owner="uid:7").SerializeToString())
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(path)
        listening.listen(0)
        first.connect(path)
        async with AsyncSandboxClient(target=target_at(Path(path))) as client, asyncio.TaskGroup() as group:
            asking = group.create_task(client.whoami(), name="asking")
            for _ in range(10):
                await asyncio.sleep(0.01)
            assert not asking.done()
            listening.setblocking(False)
            loop = asyncio.get_running_loop()
            (await loop.sock_accept(listening))[0].close()
            with (await loop.sock_accept(listening))[0] as taken:
                await loop.sock_recv(taken, 65536)
                await loop.sock_sendall(taken, answer)
                assert (await asking).owner == "uid:7"


async def test_a_server_that_says_nothing_is_given_up_some_time_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PATIENCE_S", 0.1 - QUICK_S)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(tmp_path / "sock", silent) as client:
        with pytest.raises(DeadlineExceeded, match=r"no answer from .*sock in time"):
            await client.whoami()


async def test_a_caller_that_reads_no_further_makes_the_server_wait(tmp_path: Path) -> None:
    sent = 0
    is_stuck = asyncio.Event()
    piece = chunk(envelope(pb.ExecOutput(chunk=pb.OutputChunk(data=b"x" * 100_000)).SerializeToString()))

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.set_write_buffer_limits(0)
        writer.write(STREAMED)
        while True:
            writer.write(piece)
            sent += len(piece)
            asyncio.get_running_loop().call_later(0.2, is_stuck.set)
            await writer.drain()
            is_stuck.clear()

    async with serving(tmp_path / "sock", endless) as client:
        items = client.attach_exec("sess-1", "exec-1")
        item = await anext(items)
        await is_stuck.wait()
        stuck_at = sent
        assert isinstance(item, Chunk)
        assert stuck_at < 4_000_000
        for _ in range(100):  # the control: it goes on with us
            await anext(items)
        assert sent > stuck_at
        await items.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_leaving_a_stream_ends_its_connection_also_where_a_child_has_it_open(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAMED + chunk(envelope(OUTPUT.SerializeToString())))
        await reader.read()
        ended.set()

    async with serving(tmp_path / "sock", patient) as client:
        items = client.attach_exec("sess-1", "exec-1")
        await anext(items)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent says so
            os._exit(0)
        os.close(reading)
        try:
            await items.aclose()  # type: ignore[attr-defined]  # it is a generator
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
        finally:
            os.close(writing)
            os.waitpid(child, 0)


async def first(items: AsyncIterator[object]) -> object:
    return await anext(items)


async def flood() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 100_000


CALLS: dict[str, Callable[[AsyncSandboxClient], Coroutine[Any, Any, object]]] = {
    "one": lambda client: client.whoami(),
    "watching": lambda client: first(client.attach_exec("sess-1", "exec-1")),
    "sending": lambda client: client.write_file("sess-1", "/workspace/a", flood()),
    "both": lambda client: client.exec("sess-1", "cat", stdin=flood()),
}


@pytest.mark.parametrize("turns", [1, 2, 5, 50])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_leaves_nothing_open_wherever_it_was(
    tmp_path: Path, name: str, turns: int
) -> None:
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async with serving(tmp_path / "sock", silent) as client, asyncio.TaskGroup() as group:
        before = descriptors()
        call = group.create_task(CALLS[name](client), name=name)
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        over.set()
        assert await asyncio.to_thread(opened_and_kept, before) == []
        assert client._was_answered is False


@pytest.mark.parametrize("name", ["one", "watching"])
async def test_closing_cancels_what_runs_and_asks_nothing_again(tmp_path: Path, name: str) -> None:
    asked: list[bytes] = []
    was_asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        was_asked.set()
        await reader.read()

    async with serving(tmp_path / "sock", silent) as client, asyncio.TaskGroup() as group:
        client._was_answered = True  # so that a lost call would be repeated
        call = group.create_task(CALLS[name](client), name=name)
        await was_asked.wait()
        await client.aclose()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(asked) == 1


@pytest.mark.parametrize("timeout_s", [10.0**8, float("inf")])
async def test_a_deadline_that_is_too_far_away_is_none(tmp_path: Path, timeout_s: float) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(whole("200 OK", b""))

    async with serving(tmp_path / "sock", serve) as client:
        await client.exec("sess-1", "true", timeout=timeout_s)
        await client.exec("sess-1", "true", timeout=1.0)
    assert [b"connect-timeout-ms" in head for head in asked] == [False, True]
