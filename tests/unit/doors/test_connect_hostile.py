"""Bytes from somebody who means harm: each is refused in bounded time and memory, and others are served as before."""

from __future__ import annotations

import asyncio
import json
import math
import random
import struct
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from k8e.byte_budget import ByteBudget
from k8e.doors.connect.connections import HEAD_BYTES
from k8e.doors.service.fields import MESSAGE_BYTES
from tests.support.connect import ConnectDoor, Wire, connect_door, envelope, head
from tests.support.inside import gone, running

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
BOUNDS_S = (0.2, 2, 20)
"""One after the other until what is to be in time was so: how much time that takes is the machine's affair."""


@pytest.fixture
async def door(data_dir: Path) -> AsyncIterator[ConnectDoor]:
    """A door that still serves others when the test is over."""
    async with connect_door(data_dir) as door:
        yield door
        async with door.wire() as wire:
            assert (await wire.ask("WhoAmI")).status == 200


@pytest.fixture
async def wire(door: ConnectDoor) -> AsyncIterator[Wire]:
    async with door.wire() as wire:
        yield wire


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (envelope({}) + envelope({}), "invalid_argument"),
        (envelope({}, flags=1), "unimplemented"),
        (envelope({}, flags=2), "invalid_argument"),
        (envelope({})[:-1], "invalid_argument"),
        (struct.pack(">BI", 0, 0xFFFFFFFF), "resource_exhausted"),
        (struct.pack(">BI", 0, MESSAGE_BYTES), "invalid_argument"),
        (envelope(b"{"), "invalid_argument"),
        (envelope(b"\xff\xfe"), "invalid_argument"),
        (envelope(b"[" * 50_000), "invalid_argument"),
        (envelope(b'{"session_id":"\\ud800"}'), "invalid_argument"),
        (b"{}", "invalid_argument"),
        (bytes(range(256)), "invalid_argument"),
    ],
)
@pytest.mark.parametrize("rpc", ["ExecStream", "ExecAttach", "WriteStream"])
async def test_a_stream_that_is_none_ends_with_an_error(wire: Wire, rpc: str, body: bytes, code: str) -> None:
    reply = await wire.ask(rpc, body, kind="application/connect+json")
    assert reply.status == 200
    told = reply.end["error"]["code"]
    # A caller that may send any number of messages is refused for the first of them.
    assert told == code or (body == envelope({}) + envelope({}) and told == "invalid_argument")
    assert (await wire.ask("WhoAmI")).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b"null", b'{"command":', b"[" * 100_000, b'{"timeout":' + b"9" * 100_000 + b"}"]
)
async def test_a_body_that_is_no_request_is_refused(wire: Wire, body: bytes) -> None:
    reply = await wire.ask("Exec", body)
    assert (reply.status, reply.json["code"], reply.headers["k8e-error"]) == (400, "invalid_argument", "invalid")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        bytes(1000),
    ],
)
async def test_what_is_not_http_is_refused_and_closed(wire: Wire, garbage: bytes) -> None:
    await wire.raw(garbage)
    told = await wire.end()
    assert told.startswith(b"HTTP/1.1 4")
    assert b"Traceback" not in told


@pytest.mark.parametrize("start", [b"POST /", b"POST / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 10])
async def test_a_head_that_never_ends_is_cut_off(wire: Wire, start: bytes) -> None:
    wire.writer.write(start + b"a" * (HEAD_BYTES + 1))
    assert (await wire.end()).startswith(b"HTTP/1.1 431")


async def test_a_long_head_within_the_bound_is_served(wire: Wire) -> None:
    reply = await wire.ask("WhoAmI", padding="a" * (HEAD_BYTES // 2))
    assert reply.status == 200


@pytest.mark.parametrize("tail", [b"0\r\n" + b"x: y\r\n" * (HEAD_BYTES // 3), b"1;" + b"a" * (2 * HEAD_BYTES)])
async def test_what_is_no_body_in_a_body_is_cut_off(wire: Wire, tail: bytes) -> None:
    await wire.raw(head("Exec", "application/json", {"transfer-encoding": "chunked", "expect": "100-continue"}))
    await wire.head()  # it has the head and waits for the body
    wire.writer.write(tail)
    assert (await wire.end()).startswith(b"HTTP/1.1 431")


async def test_a_message_that_says_it_is_too_long_is_refused_before_it_is_sent(wire: Wire) -> None:
    await wire.begin("Exec", "application/json", b"", content_length=str(MESSAGE_BYTES + 1))
    reply = await wire.reply()
    assert (reply.status, reply.json["code"]) == (429, "resource_exhausted")
    assert await wire.end() == b""


async def test_a_message_that_turns_out_too_long_is_refused(wire: Wire) -> None:
    await wire.raw(head("Exec", "application/json", {"transfer-encoding": "chunked"}))
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    wire.writer.writelines([piece] * (MESSAGE_BYTES // 0x100000 + 2))
    reply = await wire.reply()
    assert (reply.status, reply.json["code"]) == (429, "resource_exhausted")


async def test_an_answer_that_ends_before_its_request_closes_the_connection(wire: Wire) -> None:
    await wire.open_stream("ExecAttach")
    await wire.send({"signal": 9})
    reply = await wire.reply()
    assert reply.end["error"]["message"] == "start: must be the first message"
    assert await wire.end() == b""


async def test_requests_sent_ahead_are_not_served(door: ConnectDoor, wire: Wire) -> None:
    one = head("CreateSession", "application/json", {"content-length": "2"}) + b"{}"
    await wire.raw(one + one + one)
    first = await wire.reply()
    assert first.status == 200
    assert await wire.end() == b""
    async with door.wire() as control:
        assert len((await control.ask("ListSessions")).json["sessions"]) == 1
        for _ in range(2):  # the control: one after another they are
            await control.ask("CreateSession")
        assert len((await control.ask("ListSessions")).json["sessions"]) == 3


async def test_a_caller_that_sent_ahead_and_goes_away_stops_its_command(
    door: ConnectDoor, wire: Wire, data_dir: Path
) -> None:
    session_id = (await wire.ask("CreateSession")).json["session_id"]
    command = {"session_id": session_id, "command": f"echo $$ > {data_dir}/pid; exec sleep 600"}
    await wire.begin("Exec", "application/json", json.dumps(command).encode())
    pid = await running(data_dir / "pid")
    await wire.begin("WhoAmI", "application/json", b"{}")
    wire.writer.transport.abort()
    await gone(pid)


@pytest.mark.parametrize("cut", [0, 10, 60, -1])
async def test_half_a_request_leaves_nothing_behind(door: ConnectDoor, cut: int) -> None:
    whole = head("CreateSession", "application/json", {"content-length": "2"}) + b"{}"
    async with door.wire() as wire:
        await wire.raw(whole[:cut])
    async with door.wire() as control:
        assert (await control.ask("ListSessions")).json["sessions"] == []
        await control.raw(whole)
        assert (await control.reply()).status == 200


@pytest.mark.parametrize("drip", [b"", b"\r\n", b"P", b"POST / HTTP/1.1\r\nx: y"])
async def test_a_head_that_does_not_arrive_in_time_is_given_up(data_dir: Path, drip: bytes) -> None:
    async with connect_door(data_dir, head_s=0.2) as door, door.wire() as wire:
        await wire.raw(drip)
        assert (await wire.end()).startswith(b"HTTP/1.1 408")
    for head_s in BOUNDS_S:
        async with connect_door(data_dir, head_s=head_s) as door, door.wire() as wire:
            if await is_served(wire):
                await wire.raw(drip or b"\r\n")  # and so it is on a connection that has served before
                assert (await wire.end()).startswith(b"HTTP/1.1 408")
                return
    pytest.fail("no connection has served before")


async def is_served(wire: Wire) -> bool:
    try:
        return (await wire.ask("WhoAmI")).status == 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_a_message_that_does_not_arrive_in_time_is_given_up(data_dir: Path) -> None:
    async with connect_door(data_dir, body_s=0.2) as door:
        async with door.wire() as wire:
            await wire.begin("Exec", "application/json", b"{", content_length="100")
            reply = await wire.reply()
            assert (reply.status, reply.json["code"]) == (504, "deadline_exceeded")
            assert await wire.end() == b""
        async with door.wire() as wire:
            await wire.open_stream("ExecStream")
            assert (await wire.reply()).end["error"]["code"] == "deadline_exceeded"


async def test_a_silent_stream_is_left_alone(data_dir: Path) -> None:
    for bound_s in BOUNDS_S:
        idle_s = math.ceil(bound_s)
        async with connect_door(data_dir, body_s=bound_s, head_s=bound_s, idle_s=idle_s) as door, door.wire() as wire:
            if await has_started_cat(wire):
                await asyncio.sleep(1.5 * idle_s)
                await wire.finish()
                assert "exit" in await wire.message()
                return
    pytest.fail("no stream began in time")


async def has_started_cat(wire: Wire) -> bool:
    try:
        created = await wire.ask("CreateSession")
        if created.status != 200:
            return False
        await wire.open_stream("ExecAttach")
        start = {"session_id": created.json["session_id"], "command": "cat"}
        await wire.send({"start": start, "with_stdin": True})
        return (await wire.head())[0] == 200 and "started" in await wire.message()
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


async def test_an_idle_connection_is_closed(data_dir: Path) -> None:
    async with connect_door(data_dir, idle_s=0) as door, door.wire() as wire:
        assert (await wire.ask("WhoAmI")).status == 200
        assert await wire.end() == b""


async def test_a_user_has_a_bounded_number_of_connections(data_dir: Path) -> None:
    async with connect_door(data_dir, connections=2) as door, door.wire() as first:
        async with door.wire() as second:
            assert (await second.ask("WhoAmI")).status == 200
            async with door.wire() as third:
                refused = await third.reply()
                assert (refused.status, refused.json["code"]) == (429, "resource_exhausted")
                assert float(refused.headers["k8e-retry-after-s"]) > 0  # nothing was done yet
                assert await third.end() == b""
            assert (await first.ask("WhoAmI")).status == 200
        async with asyncio.timeout(PATIENCE_S):
            while True:  # the server may learn a moment later that a connection has ended
                async with door.wire() as again:
                    if await is_served(again):
                        break


async def test_the_requests_of_one_owner_hold_a_bounded_amount_of_memory(data_dir: Path) -> None:
    async with connect_door(data_dir, requests=ByteBudget(per_owner=1000, floor=1000)) as door, door.wire() as wire:
        assert (await wire.ask("Exec", b" " * 990 + b"{}")).status == 400
        reply = await wire.ask("Exec", b" " * 1000 + b"{}")
        assert (reply.status, reply.headers["k8e-error"]) == (429, "exhausted")
        assert float(reply.headers["k8e-retry-after-s"]) > 0


async def test_answers_that_nobody_takes_have_a_bounded_share_too(data_dir: Path) -> None:
    size = 4 * 1024 * 1024
    budget = ByteBudget(per_owner=size * 9 // 2)  # each is there as it was printed and as it is sent
    async with connect_door(data_dir, answers=budget) as door, door.wire() as wire:
        session_id = (await wire.ask("CreateSession", {"limits": {"output_bytes": size}})).json["session_id"]
        asked = {"session_id": session_id, "command": f"head -c {size} /dev/zero | tr '\\0' a"}
        async with door.wire() as first, door.wire() as second:
            for greedy in (first, second):
                await greedy.begin("Exec", "application/json", json.dumps(asked).encode())
                assert (await greedy.head())[0] == 200  # and takes no more of it
            # It has run, so it is answered: with as much as there is room for.
            cut = await wire.ask("Exec", asked)
            assert (cut.status, cut.json["truncated"], cut.json["exit_code"]) == (200, True, 0)
            assert 0 < len(cut.json["stdout"]) < size
        async with asyncio.timeout(PATIENCE_S):
            while (reply := await wire.ask("Exec", asked)).json["truncated"]:  # until both are known to be gone
                pass
        assert len(reply.json["stdout"]) == size


def test_what_one_request_holds_is_missing_for_the_same_users_next_until_it_ends() -> None:
    budget = ByteBudget(per_owner=10, floor=10)
    with closing(budget.open("1")) as first:
        assert first.resize(8)
        with closing(budget.open("1")) as second:
            assert not second.resize(3)
        with closing(budget.open("2")) as another:
            assert another.resize(10)
        assert first.resize(2)
        with closing(budget.open("1")) as third:
            assert third.resize(8)
    with closing(budget.open("1")) as again:
        assert again.resize(10)


@pytest.mark.parametrize("offered", ["h2c", "websocket"])
async def test_an_offer_of_another_protocol_is_not_taken_up(wire: Wire, offered: str) -> None:
    reply = await wire.ask("WhoAmI", connection="Upgrade", upgrade=offered)
    assert (reply.status, reply.json["code"]) == (501, "unimplemented")
    assert await wire.end() == b""


async def test_mutilated_requests_hurt_nobody(door: ConnectDoor) -> None:
    dice = random.Random(8)  # the same on every run
    data = json.dumps({"session_id": "s", "command": "true"}).encode()
    whole = head("Exec", "application/json", {"content-length": str(len(data))}) + data
    streamed = head("ExecAttach", "application/connect+json", {"transfer-encoding": "chunked"})
    streamed += b"%x\r\n%b\r\n0\r\n\r\n" % (len(data) + 5, envelope(data))
    for _ in range(300):
        victim = bytearray(dice.choice([whole, streamed]))
        for _ in range(dice.randint(1, 8)):
            victim[dice.randrange(len(victim))] = dice.randrange(256)
        async with door.wire() as wire:
            wire.writer.write(bytes(victim[: dice.randint(1, len(victim))]))
            wire.writer.write_eof()
            told = await wire.end()
        assert told == b"" or told.startswith(b"HTTP/1.1 ")
        assert b" 500 " not in told.partition(b"\r\n")[0]
