"""Hostile DNS, ClientHellos and HTTP by the million: each is understood or refused, and costs no memory that stays."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable

import dns.message
import dns.rdatatype
import h11
import pytest

from k8e.egress import http
from k8e.egress.hello import HelloReader, Kind
from k8e.egress.http import Refused, Terms, judge
from k8e.egress.resolver import LONGEST, answer
from k8e.model import MIB
from tests.support.hellos import client_hello, in_records
from tests.support.memory import resident_bytes

_SHORT, _LONG = 10_000, 1_000_000
_GROWTH = 64 * MIB
_TERMS = Terms(name="one.example", port=80, unspeakable=(b"k8e-secret",))

_QUERIES = [
    dns.message.make_query(name, kind, use_edns=edns).to_wire()
    for name in ("one.example", "a.very.long.name." + "x" * 60 + ".example", ".", "xn--nxasmq6b.example")
    for kind in ("A", "AAAA", "HTTPS", "ANY", "PTR")
    for edns in (None, 0)
]
_HELLOS = [
    hello
    for version in (None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    for name in ("one.example", None, "x" * 60 + ".example")
    for hello in (client_hello(name, version), in_records(client_hello(name, version), 50))
]
_REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n",
    b"GET http://one.example/x?y HTTP/1.1\r\nHost: one.example:80\r\nAccept: */*\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: one.example\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: one.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
]
_WORDS = [
    b"Host: two.example\r\n",
    b"Host:",
    b"Content-Length: 9\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding:\tchunked\r\n",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"\x00",
    b"\xff",
    b"http://two.example",
    b"@two.example",
    b"#",
    b"?",
    b"CONNECT ",
    b"HTTP/2.0",
    b"Upgrade: h2c\r\n",
]


def _mutated(source: random.Random, seeds: list[bytes], words: list[bytes]) -> bytes:
    """A seed with a few bytes changed, pieces cut, doubled or put in."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(data) + 1)
        match source.randrange(6):
            case 0:
                data[at : at + 1] = source.randbytes(1)
            case 1:
                del data[at : at + source.randrange(1, 20)]
            case 2:
                data[at:at] = data[source.randrange(len(data) + 1) :][: source.randrange(60)]
            case 3:
                data[at:at] = source.choice(words) if words else source.randbytes(source.randrange(8))
            case 4:
                data[at : at + 2] = source.choice([b"\x00\x00", b"\xff\xff", b"\xc0\x0c", b"\x3f\xff"])
            case _:
                data = data[:at]
    return bytes(data)


def _dns(source: random.Random) -> None:
    query = _mutated(source, _QUERIES, []) if source.random() < 0.9 else source.randbytes(source.randrange(600))
    asked: list[str] = []

    def ask(name: str) -> str | None:
        asked.append(name)
        return "198.18.0.1" if len(name) % 2 else None

    reply = answer(query, ask)
    assert len(asked) <= 1
    assert len(reply) <= 512
    if reply:
        assert len(query) <= LONGEST
        assert reply[:2] == query[:2]
        assert reply[2] & 0x80, "an answer says that it is one"


def _hello(source: random.Random) -> None:
    data = (
        _mutated(source, _HELLOS, [])
        if source.random() < 0.95
        else b"\x16\x03" + source.randbytes(source.randrange(90))
    )
    reader = HelloReader()
    piece = source.choice([len(data) + 1, 1 + len(data) // 2, 100])
    for start in range(0, len(data), piece):
        hello = reader.feed(data[start : start + piece])
        if hello is not None:
            assert hello.name is None or (hello.kind is Kind.TLS and hello.name.isascii())
            return


def _http(source: random.Random) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=http.LIMIT)
    connection.receive_data(_mutated(source, _REQUESTS, _WORDS))
    try:
        event = connection.next_event()
        if not isinstance(event, h11.Request):
            return
        passed = judge(event, _TERMS)
    except (h11.RemoteProtocolError, Refused):
        return
    # What another reader makes of what goes out: one request, for the name, with the body that was meant.
    outgoing, reader = h11.Connection(h11.CLIENT), h11.Connection(h11.SERVER)
    reader.receive_data(outgoing.send(passed) or b"")
    again = reader.next_event()
    assert isinstance(again, h11.Request)
    assert again.target == passed.target
    assert again.target[:1] in {b"/", b"*"}
    hosts = [value for name, value in again.headers if name == b"host"]
    assert hosts in ([b"one.example"], [b"one.example:80"])
    lengths = {name for name, _ in again.headers} & {b"content-length", b"transfer-encoding"}
    assert len(lengths) <= 1


_FUZZERS = [pytest.param(_dns, id="dns"), pytest.param(_hello, id="hello"), pytest.param(_http, id="http")]


def _attack(fuzz: Callable[[random.Random], None], count: int, seed: int) -> None:
    for number in range(count):
        source = random.Random(f"{seed}/{number}")
        try:
            fuzz(source)
        except Exception as error:
            raise AssertionError(f"seed {seed}, input {number}: {error!r}") from error


@pytest.mark.parametrize("fuzz", _FUZZERS)
def test_hostile_inputs_are_understood_or_refused(fuzz: Callable[[random.Random], None]) -> None:
    _attack(fuzz, _SHORT, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("fuzz", _FUZZERS)
def test_a_million_hostile_inputs_leave_nothing_behind(fuzz: Callable[[random.Random], None]) -> None:
    _attack(fuzz, _SHORT, seed=2)
    before = resident_bytes(os.getpid())
    _attack(fuzz, _LONG, seed=int.from_bytes(os.urandom(4), "big"))
    assert resident_bytes(os.getpid()) - before < _GROWTH
