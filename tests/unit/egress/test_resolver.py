"""DNS messages, proper and hostile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8e.egress import resolver
from k8e.egress.resolver import LONGEST, answer, serve_stream

_BOOK = {"one.example": "198.18.0.1"}


def _ask(name: str) -> str | None:
    return _BOOK.get(name.lower())


def _reply(query: dns.message.Message) -> dns.message.Message:
    return dns.message.from_wire(answer(query.to_wire(), _ask))


@pytest.mark.parametrize("name", ["one.example", "one.example.", "ONE.Example"])
def test_an_allowed_name_gets_its_address(name: str) -> None:
    query = dns.message.make_query(name, "A")
    reply = _reply(query)
    assert reply.id == query.id
    assert reply.rcode() == dns.rcode.NOERROR
    assert [str(each) for each in reply.answer[0]] == ["198.18.0.1"]


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "NS", "ANY", "CNAME", "NULL", "TYPE65280"])
def test_an_allowed_name_has_nothing_else(kind: str) -> None:
    reply = _reply(dns.message.make_query("one.example", kind))
    assert reply.rcode() == dns.rcode.NOERROR
    assert [*reply.answer, *reply.authority, *reply.additional] == []


@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT"])
def test_other_names_do_not_exist(kind: str) -> None:
    assert _reply(dns.message.make_query("two.example", kind)).rcode() == dns.rcode.NXDOMAIN


def test_a_question_with_edns_gets_an_answer_with_edns_and_no_more_than_512_bytes() -> None:
    wire = answer(
        dns.message.make_query("one.example", "A", use_edns=0, payload=4096, want_dnssec=True).to_wire(), _ask
    )
    assert len(wire) <= 512
    assert dns.message.from_wire(wire).edns == 0


def test_other_kinds_of_messages_are_turned_down() -> None:
    update = dns.message.make_query("one.example", "A")
    update.set_opcode(dns.opcode.NOTIFY)
    assert _reply(update).rcode() == dns.rcode.NOTIMP
    chaos = dns.message.make_query("one.example", "A", "CH")
    assert _reply(chaos).rcode() == dns.rcode.REFUSED
    two = dns.message.make_query("one.example", "A")
    two.question.append(dns.message.make_query("one.example", "AAAA").question[0])
    assert _reply(two).rcode() == dns.rcode.FORMERR


def test_answers_and_what_is_too_long_are_not_answered() -> None:
    query = dns.message.make_query("one.example", "A")
    assert answer(query.to_wire(), _ask)
    query.flags |= dns.flags.QR
    assert answer(query.to_wire(), _ask) == b""
    assert answer(bytes(11), _ask) == b""
    assert answer(dns.message.make_query("one.example", "A").to_wire() + bytes(LONGEST), _ask) == b""


@given(st.binary(max_size=300), st.integers(0, 40))
def test_no_bytes_make_it_fail_or_amplify(junk: bytes, at: int) -> None:
    whole = dns.message.make_query("one.example", "A").to_wire()
    for hostile in (junk, whole[:at] + junk, whole[:at] + junk + whole[at:]):
        reply = answer(hostile, _ask)
        assert len(reply) <= max(512, len(hostile) + 64)


async def test_a_stream_is_answered_question_by_question() -> None:
    async with _stream() as client:
        for name, rcode in (("one.example", dns.rcode.NOERROR), ("two.example", dns.rcode.NXDOMAIN)):
            assert (await _exchange(client, dns.message.make_query(name, "A").to_wire())).rcode() == rcode


async def test_a_stream_with_a_message_longer_than_any_question_is_closed() -> None:
    async with _stream() as client:
        await asyncio.get_running_loop().sock_sendall(client, struct.pack("!H", 0xFFFF))
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_a_silent_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "_STREAM_IDLE_S", 0.05)
    ours, theirs = _pair()
    ours.send(b"\x00")
    with ours, theirs, pytest.raises(resolver.TooSlow):
        await serve_stream(theirs, _ask)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


@contextlib.asynccontextmanager
async def _stream() -> AsyncIterator[socket.socket]:
    ours, theirs = _pair()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_serve(theirs), name="stream")
        with ours:
            yield ours


async def _serve(sock: socket.socket) -> None:
    with sock:
        await serve_stream(sock, _ask)


async def _exchange(client: socket.socket, query: bytes) -> dns.message.Message:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, len(query).to_bytes(2, "big") + query)
    size = int.from_bytes(await loop.sock_recv(client, 2), "big")
    return dns.message.from_wire(await loop.sock_recv(client, size))
