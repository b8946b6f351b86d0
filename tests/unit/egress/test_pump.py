"""The pump on real sockets: every byte, both ways, fairly, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

import pytest

from k8e.egress.pump import Pair, Pump, SandboxLane
from k8e.egress.sockets import reset
from tests.support.descriptors import descriptors, opened_and_kept

_PATIENCE_S = 60.0


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for sock in (one, other):
        sock.setblocking(False)
    return one, other


class _Carried:
    """A client and a server with the pump between them."""

    def __init__(self, pump: Pump, lane: SandboxLane | None = None, head: bytes = b"") -> None:
        self.client, near = _tcp_pair()
        self.server, far = _tcp_pair()
        self.ended = asyncio.Event()
        self.pair: Pair = pump.join(lane or SandboxLane(), near, far, head=head, ended=self.ended.set)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
async def pump() -> AsyncIterator[Pump]:
    before = descriptors()
    made = Pump()
    yield made
    made.close()
    assert opened_and_kept(before) == []


async def _read_all(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    async with asyncio.timeout(_PATIENCE_S):
        while piece := await loop.sock_recv(sock, 1 << 18):
            data += piece
    return bytes(data)


async def _send(sock: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.get_running_loop().sock_sendall(sock, data)


async def test_both_directions_at_once_byte_for_byte_with_half_closes(pump: Pump) -> None:
    carried = _Carried(pump, head=b"head ")
    up, down = random.Random(1).randbytes(5_000_001), random.Random(2).randbytes(7_000_003)

    async def send(sock: socket.socket, data: bytes) -> None:
        await _send(sock, data)
        sock.shutdown(socket.SHUT_WR)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send(carried.client, up))
        tasks.create_task(send(carried.server, down))
        at_server = tasks.create_task(_read_all(carried.server))
        at_client = tasks.create_task(_read_all(carried.client))
    assert at_server.result() == b"head " + up
    assert at_client.result() == down
    await asyncio.wait_for(carried.ended.wait(), _PATIENCE_S)
    assert (carried.pair.sent, carried.pair.received) == (len(up) + 5, len(down))
    carried.close()


async def test_an_answer_still_comes_after_the_client_has_ended_its_side(pump: Pump) -> None:
    carried = _Carried(pump)
    await _send(carried.client, b"question")
    carried.client.shutdown(socket.SHUT_WR)
    assert await _read_all(carried.server) == b"question"
    await _send(carried.server, b"answer")
    carried.server.close()
    assert await _read_all(carried.client) == b"answer"
    await asyncio.wait_for(carried.ended.wait(), _PATIENCE_S)
    carried.close()


async def test_a_reset_of_one_end_is_a_reset_for_the_other(pump: Pump) -> None:
    for which in ("client", "server"):
        carried = _Carried(pump)
        await _send(carried.client, b"x")
        assert await asyncio.get_running_loop().sock_recv(carried.server, 1) == b"x"
        broken, other = (carried.client, carried.server) if which == "client" else (carried.server, carried.client)
        reset(broken)
        with pytest.raises(ConnectionResetError):
            await _read_all(other)
        await asyncio.wait_for(carried.ended.wait(), _PATIENCE_S)
        carried.close()


async def test_a_reader_that_does_not_read_holds_its_writer_back_and_a_reset_frees_all(pump: Pump) -> None:
    carried = _Carried(pump)
    sent = 0
    for _ in range(100):
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += carried.server.send(bytes(1 << 20))
        await asyncio.sleep(0.005)
    assert sent < 64 << 20
    assert carried.pair.received < sent
    reset(carried.client)
    await asyncio.wait_for(carried.ended.wait(), _PATIENCE_S)
    carried.close()


async def test_a_cut_resets_both_ends_before_it_returns(pump: Pump) -> None:
    carried = _Carried(pump)
    await _send(carried.client, b"x")
    assert await asyncio.get_running_loop().sock_recv(carried.server, 1) == b"x"
    pump.cut(carried.pair)
    assert carried.ended.is_set()
    for sock in (carried.client, carried.server):
        sock.settimeout(_PATIENCE_S)  # for the kernel alone: the pump has no further turn
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    pump.cut(carried.pair)
    carried.close()


async def test_a_limited_lane_is_slower_than_an_unlimited_one_beside_it(pump: Pump) -> None:
    slow, quick = SandboxLane(), SandboxLane()
    slow.set_rate(40_000)  # so little that no machine is slow enough for it to catch up
    limited, free = _Carried(pump, slow), _Carried(pump, quick)

    async def fill(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(sock, bytes(20 << 20))

    async with asyncio.TaskGroup() as tasks:
        filling = [tasks.create_task(fill(each.server)) for each in (limited, free)]
        reading = tasks.create_task(_read_all(limited.client))
        got = 0
        while got < 20 << 20:
            got += len(await asyncio.get_running_loop().sock_recv(free.client, 1 << 18))
        assert limited.pair.received < got / 2
        pump.cut(limited.pair)
        for task in (*filling, reading):
            task.cancel()
    for each in (limited, free):
        each.close()


async def test_hundreds_of_pairs_come_and_go_without_a_trace(pump: Pump) -> None:
    before = descriptors()
    lane = SandboxLane()
    for round_number in range(5):
        crowd = [_Carried(pump, lane) for _ in range(100)]
        for number, each in enumerate(crowd):
            await _send(each.client, b"%d" % number)
        for number, each in enumerate(crowd):
            assert await asyncio.get_running_loop().sock_recv(each.server, 9) == b"%d" % number
        for number, each in enumerate(crowd):
            if number % 3 == 0:
                pump.cut(each.pair)
            elif number % 3 == 1:
                reset(each.client)
            else:
                each.client.close()
                each.server.close()
        for each in crowd:
            await asyncio.wait_for(each.ended.wait(), _PATIENCE_S)
            each.close()
        assert lane.pairs == 0, round_number
    # Spare pipes stay: a few, and only those.
    assert opened_and_kept(before, allowed=2 * 32) == []
