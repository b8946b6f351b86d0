"""The way out: what is dialled, and what is not."""

from __future__ import annotations

import asyncio
import socket

import pytest

from k8e.egress.upstream import Lookups, SystemResolver, Unreachable, connect
from tests.support.descriptors import descriptors, opened_and_kept

_PATIENCE_S = 30.0


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _anything(_: str) -> str:
    return ""


async def test_the_first_address_that_may_be_dialled_and_answers_is_taken(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    judged: list[str] = []

    def judge(address: str) -> str:
        judged.append(address)
        return "a bad address" if address == "127.0.0.3" else ""

    with listener:
        sock, address = await connect(("127.0.0.3", "127.0.0.2", "127.0.0.1"), port, judge)
        with sock:
            assert address == "127.0.0.1"
            assert judged == ["127.0.0.3", "127.0.0.2", "127.0.0.1"]
            assert sock.getpeername() == ("127.0.0.1", port)


async def test_an_address_that_is_refused_is_never_dialled(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with listener:
        listener.setblocking(False)
        with pytest.raises(Unreachable, match="a loopback address"):
            await connect(("127.0.0.1",), port, lambda _: "a loopback address")
        with pytest.raises(BlockingIOError):
            listener.accept()
        sock, _ = await connect(("127.0.0.1",), port, _anything)
        with sock:
            listener.settimeout(_PATIENCE_S)
            listener.accept()[0].close()


async def test_a_name_without_addresses_and_a_closed_port_are_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, so that nobody else comes to listen there
        port = closed.getsockname()[1]
        before = descriptors()
        with pytest.raises(Unreachable, match="no address"):
            await connect((), port, _anything)
        with pytest.raises(Unreachable, match="refused"):
            await connect(("127.0.0.1",), port, _anything)
        assert opened_and_kept(before) == []


async def test_a_lookup_that_nobody_waits_for_keeps_its_place_until_it_is_answered() -> None:
    asked: list[str] = []
    answers = asyncio.Event()

    async def slow(name: str) -> tuple[str, ...]:
        asked.append(name)
        await answers.wait()
        return ("192.0.2.1",)

    lookups = Lookups(2)
    async with asyncio.TaskGroup() as tasks:
        given_up = [asyncio.create_task(lookups.find(f"{number}.test", slow, tasks)) for number in range(6)]
        await _turns()
        for each in given_up:
            each.cancel()
        waiting = tasks.create_task(lookups.find("last.test", slow, tasks))
        await _turns()
        assert asked == ["0.test", "1.test"]
        answers.set()
        assert await waiting == ("192.0.2.1",)
    assert asked == ["0.test", "1.test", "last.test"]


async def test_a_lookup_that_fails_is_an_error_of_that_lookup_only() -> None:
    async def broken(name: str) -> tuple[str, ...]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again") if name == "a.test" else UnicodeError("no name")

    lookups = Lookups(1)
    async with asyncio.TaskGroup() as tasks:
        with pytest.raises(Unreachable, match="looked up: try again"):
            await lookups.find("a.test", broken, tasks)
        with pytest.raises(UnicodeError):
            await lookups.find("b.test", broken, tasks)


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_hosts_own_resolver_is_asked_and_remembered() -> None:
    resolver = SystemResolver()
    try:
        assert "127.0.0.1" in await resolver("localhost")
        assert await resolver("localhost") == await resolver("localhost")
    finally:
        resolver.close()
