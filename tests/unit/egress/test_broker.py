"""The broker against real TLS servers and real clients: the host gets the value, the program never does."""

from __future__ import annotations

import asyncio
import base64
import gzip
import ssl
from collections.abc import Callable
from pathlib import Path

import brotli  # type: ignore[import-untyped]  # the library ships no types
import pytest

from k8e.egress import broker
from k8e.model import Grant, Verdict
from tests.support.brokered import HOST, VALUE, WORD, Handler, open_rig

pytestmark = pytest.mark.anyio

SECRET = VALUE.encode()
AUTHORIZED = f"Authorization: Bearer {WORD}"
MIB = 1024 * 1024


class Host:
    """Remembers every request's head and body; answers with what a test says."""

    def __init__(self, *answers: bytes) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._answers = answers

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self._answers:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            self.bodies.append(await body_of(head, reader))
            writer.write(answer)
            await writer.drain()


async def body_of(head: bytes, reader: asyncio.StreamReader) -> bytes:
    lower = head.lower()
    if b"content-length: " in lower:
        return await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
    body = b""
    if b"transfer-encoding: chunked" in lower:
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return body


def plain(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def echo() -> Handler:
    """Sends back the head it got, in header and body."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            credentials = head.lower().split(b"authorization: ")
            got = head[head.lower().index(b"authorization: ") + 15 :].split(b"\r\n")[0] if len(credentials) > 1 else b""
            writer.write(plain(head, f"X-Got: {got.decode()}", "Content-Type: text/plain"))
            await writer.drain()

    return handle


async def test_the_host_gets_the_value_and_the_program_sees_only_its_placeholder() -> None:
    host = Host(plain(b"you sent " + SECRET, f"X-Token: {VALUE}"))
    async with open_rig(host) as rig:
        answer = await rig.ask("GET /x HTTP/1.1", AUTHORIZED)
    assert f"Authorization: Bearer {VALUE}\r\n".encode() in host.heads[0]
    assert WORD.encode() not in host.heads[0]
    assert SECRET not in answer
    assert answer.count(WORD.encode()) == 2
    assert len(rig.counted) == 1
    assert min(rig.counted[0]) > 100
    assert rig.told == []


async def test_basic_credentials_carry_it_too_and_their_echo_is_scrubbed() -> None:
    async with open_rig(echo()) as rig:
        token = base64.b64encode(f"me:{WORD}".encode()).decode()
        answer = await rig.ask("GET / HTTP/1.1", f"Authorization: Basic {token}")
    assert b"Basic bWU6" in answer
    assert base64.b64encode(b"me:" + SECRET)[8:-4] not in answer


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("br", brotli.compress)])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_packed_bodies_are_scrubbed(encoding: str, pack: Callable[[bytes], bytes], framing: str) -> None:
    packed = pack(b"<" * 5000 + SECRET + b">" * 5000)
    async with open_rig(Host(framed(packed, framing, f"Content-Encoding: {encoding}"))) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED, "Accept-Encoding: gzip, br, zstd")
    body = dechunked(answer)
    assert body == b"<" * 5000 + WORD.encode() + b"*" * (len(SECRET) - len(WORD)) + b">" * 5000
    assert b"content-encoding" not in answer.lower().split(b"\r\n\r\n")[0]


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_plain_bodies_are_scrubbed_however_they_are_framed(framing: str) -> None:
    async with open_rig(Host(framed(b"a" + SECRET + b"b", framing))) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert SECRET not in answer
    body = answer.partition(b"\r\n\r\n")[2] if framing == "length" else dechunked(answer)
    assert body == b"a" + WORD.encode().ljust(len(SECRET), b"*") + b"b"


SPELLINGS = {
    "json of php": SECRET.replace(b"-", rb"\u002D").replace(b"/", rb"\/"),
    "json within json": b"".join(rb"\\u%04x" % char for char in SECRET),
    "percent codes": b"".join(b"%%%02x" % char for char in SECRET),
    "entities": b"".join(b"&#%d;" % char for char in SECRET),
    "base64url": base64.urlsafe_b64encode(b"me:" + SECRET),
    "digits": SECRET.hex().encode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=list(SPELLINGS))
async def test_other_spellings_of_the_value_are_scrubbed_in_body_and_header(spelling: bytes) -> None:
    async with open_rig(Host(plain(b'{"you": "' + spelling + b'"}', f"X-You: {spelling.decode()}"))) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert answer.count(WORD.encode()[:32]) == 2
    assert spelling[8:-8] not in answer
    assert answer.endswith(b'"}'), "the length is what it was"


async def test_events_of_a_stream_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one is there before the next one is sent, though nothing is let go because of a pause."""
    monkeypatch.setattr(broker, "_QUIET_S", 60.0)
    seen = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for count in range(3):
            writer.write(b"data: %d\n\n" % count)
            await writer.drain()
            await seen.wait()
            seen.clear()

    async with open_rig(handle) as rig:
        reader, writer = await rig.connect()
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\n\r\n".encode())
        for count in range(3):
            await reader.readuntil(b"data: %d\n\n" % count)
            seen.set()
        writer.close()


async def test_a_value_split_across_reads_and_chunks_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine is: none of these pieces is so late that what is held goes out without it.
    monkeypatch.setattr(broker, "_QUIET_S", 60.0)

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in SECRET:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with open_rig(dribble) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert dechunked(answer) == WORD.encode() + b"*" * (len(SECRET) - len(WORD))


async def test_a_right_guess_comes_back_in_the_same_pieces_as_a_wrong_one() -> None:
    """The host sends back what it is asked for, then a dot: where the pieces end must not tell what a value begins with."""

    heard = asyncio.Event()

    async def parrot(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            said = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(said), said))
            await writer.drain()
            await heard.wait()
            heard.clear()
            writer.write(b"1\r\n.\r\n0\r\n\r\n")
            await writer.drain()

    right, wrong = VALUE[:9], VALUE[:8] + "#"
    async with open_rig(parrot) as rig:
        reader, writer = await rig.connect()
        sizes = []
        for guess in (right, wrong):
            writer.write(f"GET /{guess} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            sizes.append(int(await reader.readline(), 16))
            heard.set()
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert sizes == [len(right) + 1] * 2


async def test_what_is_live_stays_live() -> None:
    asked = asyncio.Event()

    async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        await asked.wait()  # set by the client only once it has seen the first
        writer.write(b"data: two\n\n")

    async with open_rig(events) as rig:
        reader, writer = await rig.connect()
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert b"one" in await reader.readuntil(b"one")
        asked.set()
        assert b"two" in await reader.readuntil(b"two")
        writer.close()


@pytest.mark.parametrize(
    ("method", "answer", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Encoding: gzip\r\n\r\n", b"content-length: 1000"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Encoding: gzip\r\n\r\n", b"304"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n", b"204"),
    ],
)
async def test_answers_without_a_body_keep_the_connection(method: str, answer: bytes, head: bytes) -> None:
    host = Host(answer, plain(b"next"))
    async with open_rig(host) as rig:
        reader, writer = await rig.connect()
        writer.write(f"{method} / HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\n\r\n".encode())
        assert head in (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert (await reader.readuntil(b"next")).endswith(b"next")
        writer.close()
    assert len(host.heads) == 2
    assert len(rig.dials) == 1


async def test_a_kept_connection_swaps_each_time_and_uses_the_newest_value() -> None:
    host = Host(plain(b"end"), plain(b"end"), plain(b"end"))
    async with open_rig(host) as rig:
        reader, writer = await rig.connect()
        for number, value in enumerate(("first-value", "second-value", ""), 1):
            if value:
                rig.guest.grants = (Grant(host=HOST, header="authorization", placeholder=WORD, value=value),)
            else:
                rig.guest.grants = ()
            writer.write(f"GET /{number} HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\n\r\n".encode())
            await reader.readuntil(b"end")
        writer.close()
    assert b"first-value" in host.heads[0]
    assert b"second-value" in host.heads[1]
    assert WORD.encode() in host.heads[2]


async def test_a_body_waits_for_the_hosts_word_and_then_goes() -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        writer.write(f"HTTP/1.1 100 Continue\r\nX-Echo: {VALUE}\r\n\r\n".encode())
        writer.write(plain(await reader.readexactly(5)))
        await writer.drain()

    async with open_rig(careful) as rig:
        reader, writer = await rig.connect()
        head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n{AUTHORIZED}\r\n\r\n"
        writer.write(head.encode())
        first = await reader.readuntil(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 100")
        assert SECRET not in first
        writer.write(b"12345")
        assert (await reader.readuntil(b"12345")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_host_that_answers_before_the_whole_body_came_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_LINGER_S", 60.0)  # the program ends it, once it has the answer

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(plain(b"too much", "Connection: close", status="413 Content Too Large"))
        await writer.drain()

    async with open_rig(impatient) as rig:
        reader, writer = await rig.connect()
        head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\nContent-Length: {8 * MIB}\r\n\r\n"
        writer.write(head.encode() + bytes(8 * MIB))
        assert b"413" in await reader.readuntil(b"too much")
        writer.transport.abort()


@pytest.mark.parametrize("size", [64 * MIB])
async def test_a_large_body_passes_without_being_kept(size: int) -> None:
    """Back-pressure: while the program does not read, the host cannot go on sending."""
    sent = 0

    async def generous(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        while sent < size:
            writer.write(bytes(MIB))
            await writer.drain()
            sent += MIB

    async with open_rig(generous) as rig:
        reader, writer = await rig.connect()
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < size // 2
        got = 0
        while got < size:
            got += len(await reader.read(MIB))
        assert (got, sent) == (size, size)
        writer.close()


async def test_a_large_upload_passes() -> None:
    received = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        while received < 32 * MIB:
            received += len(await reader.read(MIB))
        writer.write(plain(b"thanks"))
        await writer.drain()

    async with open_rig(count) as rig:
        answer = await rig.ask("PUT / HTTP/1.1", AUTHORIZED, f"Content-Length: {32 * MIB}", body=bytes(32 * MIB))
    assert answer.endswith(b"thanks")
    assert received == 32 * MIB


async def test_a_websocket_is_opened_with_the_value_and_its_frames_are_scrubbed() -> None:
    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert SECRET in head
        assert b"permessage" not in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            + b"\x81%c%b" % (len(SECRET), SECRET)
        )
        writer.write(b"echo:" + await reader.readexactly(9))
        await writer.drain()

    async with open_rig(websocket) as rig:
        reader, writer = await rig.connect()
        lines = [
            f"Host: {HOST}",
            AUTHORIZED,
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Extensions: permessage-deflate",
        ]
        writer.write(("GET / HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\nearly").encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        frame = await reader.readexactly(2 + len(SECRET))
        assert frame == b"\x81%c%b" % (len(SECRET), WORD.encode().ljust(len(SECRET), b"*"))
        writer.write(b"late")
        assert await reader.readuntil(b"late") == b"echo:earlylate"
        writer.close()


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["GET / HTTP/1.1", f"X-Other: {WORD}"], b""),
        ([f"GET /?t={WORD} HTTP/1.1"], b""),
        (["GET / HTTP/1.1", "Authorization: k8e_placeholder_of_another_host"], b""),
    ],
    ids=["another header", "the address", "another host's"],
)
async def test_a_placeholder_in_the_wrong_place_is_blocked_and_reported(lines: list[str], body: bytes) -> None:
    host = Host(plain(b"fine"))
    async with open_rig(host) as rig:
        other = Grant(
            host="other.example", header="authorization", placeholder="k8e_placeholder_of_another_host", value="x" * 20
        )
        rig.guest.grants = (*rig.guest.grants, other)
        answer = await rig.ask(*lines, body=body)
        assert answer.startswith(b"HTTP/1.1 403")
        assert (host.heads, rig.dials) == ([], [])
        (decision,) = rig.told
        assert (decision.verdict, decision.name, decision.port) == (Verdict.DENIED, HOST, 443)
        assert "placeholder" in decision.reason
        assert (await rig.ask("GET / HTTP/1.1", AUTHORIZED)).endswith(b"fine")


async def test_another_hosts_placeholder_in_a_body_never_arrives_whole() -> None:
    host = Host(plain(b"fine"))
    async with open_rig(host) as rig:
        other = Grant(host="other.example", header="authorization", placeholder="k8e_other_placeholder", value="x" * 20)
        rig.guest.grants = (*rig.guest.grants, other)
        await rig.ask("POST / HTTP/1.1", "Content-Length: 40", body=b"0123456789k8e_other_placeholder012345678")
        assert host.bodies == []
        assert "body" in rig.told[0].reason
        own = "POST / HTTP/1.1", f"Content-Length: {len(WORD)}"
        assert (await rig.ask(*own, body=WORD.encode())).endswith(b"fine")
    assert host.bodies == [WORD.encode()]


async def test_another_host_in_the_request_is_blocked() -> None:
    host = Host(plain(b"fine"))
    async with open_rig(host) as rig:
        reader, writer = await rig.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 403")
        writer.close()
    assert host.heads == []
    assert "other.example" in rig.told[0].reason


async def test_a_host_that_cannot_prove_itself_never_sees_the_value() -> None:
    host = Host(plain(b"fine"))
    async with open_rig(host, host_is="evil.example") as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert answer.startswith(b"HTTP/1.1 502")
    assert host.heads == []
    assert "prove" in rig.told[0].reason


async def test_a_host_that_is_down_is_told_as_such() -> None:
    async with open_rig(Host(), is_up=False) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert answer.startswith(b"HTTP/1.1 502")


async def test_a_body_that_cannot_be_looked_into_does_not_come_through() -> None:
    async with open_rig(Host(plain(b"(zstd)" + SECRET, "Content-Encoding: zstd"))) as rig:
        answer = await rig.ask("GET / HTTP/1.1", AUTHORIZED)
    assert answer.startswith(b"HTTP/1.1 502")
    assert SECRET not in answer
    assert "zstd" in rig.told[0].reason


@pytest.mark.parametrize(
    "answer",
    [
        plain(gzip.compress(SECRET * 100)[:-9], "Content-Encoding: gzip"),
        plain(b"not gzip at all" + SECRET, "Content-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\nshort",
    ],
    ids=["cut", "lying", "short"],
)
async def test_a_broken_body_is_not_taken_for_a_whole_one(answer: bytes) -> None:
    async with open_rig(Host(answer)) as rig:
        reader, writer = await rig.connect()
        writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{AUTHORIZED}\r\n\r\n".encode())
        got = await reader.read()
        assert not got.endswith(b"0\r\n\r\n")
        assert SECRET not in got
        writer.close()


@pytest.mark.parametrize(
    "text",
    [
        "\x16\x03 nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_not_plain_http_is_refused_before_anything_is_dialled(text: str) -> None:
    async with open_rig(Host()) as rig:
        reader, writer = await rig.connect()
        writer.write(f"{text}Host: {HOST}\r\n\r\n".encode("latin-1"))
        assert (await reader.read())[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 403")
        writer.close()
    assert rig.dials == []
    assert rig.told[0].verdict is Verdict.DENIED


async def test_a_program_that_does_not_trust_the_session_is_told_about() -> None:
    async with open_rig(Host()) as rig:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", rig.port, ssl=ssl.create_default_context(), server_hostname=HOST)
        while not rig.told:
            await asyncio.sleep(0.01)
    assert "trust" in rig.told[0].reason


@pytest.mark.parametrize(
    "argv",
    [
        ["curl", "-sS", "--compressed", "--http1.1"],
        ["curl", "-sS", "-u", f"user:{WORD}"],
        ["curl", "-sS", "--http2", "-X", "POST", "-d", "x=1"],
    ],
    ids=["bearer", "basic", "wanting HTTP/2"],
)
async def test_curl_works_with_the_placeholder(argv: list[str], tmp_path: Path) -> None:
    async with open_rig(echo()) as rig:
        (tmp_path / "ca.pem").write_text(rig.ca)
        extra = [] if "-u" in argv else ["-H", AUTHORIZED]
        target = ["--cacert", str(tmp_path / "ca.pem"), "--connect-to", f"{HOST}:443:127.0.0.1:{rig.port}"]
        process = await asyncio.create_subprocess_exec(
            *argv, *extra, *target, f"https://{HOST}/", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"authorization" in out.lower()
    assert SECRET not in out
    assert WORD.encode() in out


def framed(body: bytes, framing: str, *headers: str) -> bytes:
    if framing == "length":
        return plain(body, *headers)
    if framing == "close":
        return "\r\n".join(["HTTP/1.0 200 OK", *headers, "", ""]).encode() + body
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    lines = ["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", *headers, "", ""]
    return "\r\n".join(lines).encode() + pieces + b"0\r\n\r\n"


def dechunked(answer: bytes) -> bytes:
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body
