"""HTTP/1 through the proxy: what passes, what is refused, and what a server gets to see."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress import http
from k8e.egress.http import NotHttp, Refused, Terms, judge, looks_like_http, serve
from k8e.egress.sockets import is_quiet
from k8e.egress.turns import Turns
from tests.support.descriptors import descriptors

_PATIENCE_S = 60.0
_TERMS = Terms(name="one.example", port=80, unspeakable=(b"k8e-placeholder-1",))
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Stage:
    """A client's end, and everything that servers were told."""

    def __init__(self, client: socket.socket, heard: list[bytes]) -> None:
        self.client = client
        self.heard = heard
        """One entry per connection."""
        self.dials: list[socket.socket] = []

    @property
    def dialled(self) -> int:
        return len(self.dials)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def receive(self, until: bytes) -> bytes:
        data = b""
        async with asyncio.timeout(_PATIENCE_S):
            while until not in data:
                piece = await asyncio.get_running_loop().sock_recv(self.client, 65536)
                if not piece:
                    break
                data += piece
        return data

    async def rest(self) -> bytes:
        return await self.receive(b"\x00 never \x00")


async def _answering(reader: Ear, writer: asyncio.StreamWriter) -> None:
    """Two letters for whatever is asked, as often as it is asked."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in head:
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(_OK)


@contextlib.asynccontextmanager
async def _stage(first: bytes, speak: Speak = _answering) -> AsyncIterator[tuple[Stage, asyncio.Task[None]]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    heard: list[bytes] = []
    before = descriptors()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await speak(Ear(reader, heard), writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    stage = Stage(ours, heard)

    async def dial() -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        stage.dials.append(sock)
        await asyncio.get_running_loop().sock_connect(sock, server.sockets[0].getsockname())
        return sock

    async def run() -> None:
        with theirs:
            await serve(theirs, first, _TERMS, dial, Turns())

    task = asyncio.get_running_loop().create_task(run())
    try:
        yield stage, task
    finally:
        ours.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Refused, OSError):
            await task
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(_PATIENCE_S):
            while descriptors() - before:
                await asyncio.sleep(0.01)
        assert theirs.fileno() == -1


class Ear:
    """A server's reader, whose bytes are also kept for the test."""

    def __init__(self, reader: asyncio.StreamReader, heard: list[bytes]) -> None:
        self._reader = reader
        self._heard = heard
        self._index = len(heard)
        heard.append(b"")

    def _keep(self, data: bytes) -> bytes:
        self._heard[self._index] += data
        return data

    async def readuntil(self, separator: bytes) -> bytes:
        return self._keep(await self._reader.readuntil(separator))

    async def readexactly(self, size: int) -> bytes:
        return self._keep(await self._reader.readexactly(size))

    async def read(self, most: int) -> bytes:
        return self._keep(await self._reader.read(most))


Speak = Callable[[Ear, asyncio.StreamWriter], Awaitable[None]]


async def _refusal(request: bytes) -> Refused:
    """Why it was refused; no server heard a word of it."""
    async with _stage(request) as (stage, task):
        with pytest.raises(Refused) as caught:
            await asyncio.wait_for(task, _PATIENCE_S)
        assert stage.dialled == 0
    return caught.value


@pytest.mark.parametrize(
    "request_line_and_host",
    [
        b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: ONE.example.\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: one.example:80\r\n\r\n",
        b"GET http://one.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: one.example\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
async def test_requests_for_the_name_pass(request_line_and_host: bytes) -> None:
    async with _stage(request_line_and_host) as (stage, _):
        assert (await stage.receive(b"ok")).startswith(b"HTTP/1.1 200")
        assert re.search(rb"(?i)\r\nhost: one\.example(:80)?\r\n", stage.heard[0])
        assert b"http://" not in stage.heard[0]


@pytest.mark.parametrize(
    ("request_bytes", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: two.example\r\n\r\n", "Host says two.example"),
        (b"GET / HTTP/1.1\r\nHost: \x1cone.example\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: \xa0one.example\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: 203.0.113.9\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: one.example:8080\r\n\r\n", "port 8080"),
        (b"GET / HTTP/1.1\r\nHost: one.example@two.example\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: one.example, two.example\r\n\r\n", "no host name"),
        (b"GET http://two.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n", "Host says two.example"),
        (b"GET http://one.example?@two.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n", "query"),
        (b"GET http://u@two.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n", "no host name"),
        (b"GET https://one.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n", "target"),
        (b"GET two.example/ HTTP/1.1\r\nHost: one.example\r\n\r\n", "target"),
        (b"CONNECT one.example:80 HTTP/1.1\r\nHost: one.example:80\r\n\r\n", "CONNECT"),
        (
            b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "two lengths",
        ),
        (b"GET / HTTP/1.1\r\nHost: one.example\r\nX-Key: k8e-placeholder-1\r\n\r\n", "placeholder"),
        (b"GET /?k=k8e-placeholder-1 HTTP/1.1\r\nHost: one.example\r\n\r\n", "placeholder"),
    ],
)
async def test_requests_for_anything_else_are_refused_before_anybody_is_dialled(request_bytes: bytes, why: str) -> None:
    refusal = await _refusal(request_bytes)
    assert why in refusal.reason
    assert not isinstance(refusal, NotHttp)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one.example\r\nHost: two.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one.example\r\nHost : two.example\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: one.example\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: +4\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: one.example\r\nX: " + b"a" * http.LIMIT + b"\r\n\r\n",
    ],
)
async def test_what_is_not_proper_http_is_refused(request_bytes: bytes) -> None:
    assert isinstance(await _refusal(request_bytes), NotHttp)


async def test_a_kept_connection_is_judged_request_by_request() -> None:
    async with _stage(b"GET /1 HTTP/1.1\r\nHost: one.example\r\n\r\n") as (stage, task):
        await stage.receive(b"ok")
        await stage.send(b"GET /2 HTTP/1.1\r\nHost: one.example\r\n\r\n")
        await stage.receive(b"ok")
        await stage.send(b"GET /3 HTTP/1.1\r\nHost: two.example\r\n\r\n")
        with pytest.raises(Refused):
            await asyncio.wait_for(task, _PATIENCE_S)
        assert stage.dialled == 1
        assert b"/2" in stage.heard[0]
        assert b"/3" not in stage.heard[0]


async def test_pipelined_requests_are_judged_one_by_one() -> None:
    good, bad = (b"GET /%s HTTP/1.1\r\nHost: %s.example\r\n\r\n" % pair for pair in ((b"1", b"one"), (b"2", b"two")))
    async with _stage(good + bad) as (stage, task):
        with pytest.raises(Refused):
            await asyncio.wait_for(task, _PATIENCE_S)
        assert b"two.example" not in b"".join(stage.heard)


async def test_a_request_hidden_in_a_body_stays_a_body() -> None:
    hidden = b"GET / HTTP/1.1\r\nHost: two.example\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: one.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with _stage(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)) as (stage, _):
        await stage.receive(b"ok")
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(stage.heard[0])
        events = [connection.next_event() for _ in range(3)]
        assert [type(event) for event in events] == [h11.Request, h11.Data, h11.EndOfMessage]


async def test_a_server_that_closed_meanwhile_is_dialled_anew() -> None:
    async def once(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_OK)

    async with _stage(b"GET /1 HTTP/1.1\r\nHost: one.example\r\n\r\n", once) as (stage, _):
        await stage.receive(b"ok")
        async with asyncio.timeout(_PATIENCE_S):
            while is_quiet(stage.dials[0]):
                await asyncio.sleep(0.01)
        await stage.send(b"GET /2 HTTP/1.1\r\nHost: one.example\r\n\r\n")
        assert await stage.receive(b"ok")
        assert stage.dialled == 2


@pytest.mark.parametrize("length", [b"Content-Length: 2\r\n", b""], ids=["with its length", "up to the end"])
async def test_a_server_that_speaks_http_1_0_is_understood(length: bytes) -> None:
    async def once(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 Fine\r\n" + length + b"\r\nok")

    async with _stage(b"GET /1 HTTP/1.1\r\nHost: one.example\r\n\r\n", once) as (stage, _):
        answer = await stage.receive(b"ok")
        assert answer.startswith(b"HTTP/1.1 200 Fine\r\n")
        await stage.send(b"GET /2 HTTP/1.1\r\nHost: one.example\r\n\r\n")
        assert b"ok" in await stage.receive(b"ok")
        assert stage.dialled == 2


async def test_an_expected_100_comes_before_the_body_is_sent() -> None:
    async def patient(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(_OK)

    head = b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    async with _stage(head, patient) as (stage, _):
        assert b"100 Continue" in await stage.receive(b"\r\n\r\n")
        await stage.send(b"body")
        assert b"200 OK" in await stage.receive(b"ok")


async def test_an_answer_before_the_end_of_the_body_arrives() -> None:
    async def curt(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()

    head = b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 1000000000\r\n\r\n"
    async with _stage(head + bytes(1000), curt) as (stage, _):
        assert (await stage.rest()).endswith(b"no")


async def test_websockets_pass_and_are_raw_after_the_switch() -> None:
    async def echo(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := await reader.read(100):
            writer.write(data)

    head = b"GET / HTTP/1.1\r\nHost: one.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with _stage(head, echo) as (stage, task):
        assert b"101" in await stage.receive(b"\r\n\r\n")
        await stage.send(b"\x00\xff not HTTP at all")
        assert await stage.receive(b"at all") == b"\x00\xff not HTTP at all"
        stage.client.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(task, _PATIENCE_S)


async def test_no_invitation_to_http_2_goes_out() -> None:
    head = b"GET / HTTP/1.1\r\nHost: one.example\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n"
    async with _stage(head) as (stage, _):
        assert await stage.receive(b"ok")
        assert b"h2c" not in stage.heard[0]


async def test_a_server_that_switches_unasked_is_cut_off() -> None:
    async def pushy(reader: Ear, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")

    async with _stage(b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n", pushy) as (_, task):
        with pytest.raises(ConnectionAbortedError):
            await asyncio.wait_for(task, _PATIENCE_S)


async def test_a_head_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HEAD_S", 0.05)
    async with _stage(b"GET / HTTP/1.1\r\nHost: one.exa") as (stage, task):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, _PATIENCE_S)
        assert stage.dialled == 0


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"GET / HTTP/1.1\r\n", True),
        (b"PRI * HTTP/2.0\r\n", True),
        (b"GET / HT", None),
        (b"SSH-2.0-OpenSSH_9.2 Debian-2\r\n", False),
        (b"\x16\x03", False),
        (b"a" * 8192, False),
    ],
)
def test_a_requests_first_line_is_told_from_other_protocols(data: bytes, verdict: bool | None) -> None:
    assert looks_like_http(data) is verdict


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_request_that_passes_names_another_host(junk: bytes, at: int) -> None:
    whole = b"GET / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 0\r\n\r\n"
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=http.LIMIT)
    connection.receive_data(whole[:at] + junk + whole[at:])
    try:
        event = connection.next_event()
        passed = judge(event, _TERMS) if isinstance(event, h11.Request) else None
    except (h11.RemoteProtocolError, Refused):
        return
    if passed is not None:
        hosts = [value.lower().rstrip(b".") for name, value in passed.headers if name == b"host"]
        assert [host.removesuffix(b":80").rstrip(b".") for host in hosts] == [b"one.example"]
        assert passed.target.startswith((b"/", b"*"))
