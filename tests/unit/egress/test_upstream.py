"""The way out: what is dialled, and what is not."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from k8e.egress.upstream import SystemResolver, Unreachable, connect


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
            listener.accept()[0].close()


async def test_a_name_without_addresses_and_a_closed_port_are_unreachable(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(Unreachable, match="no address"):
        await connect((), port, _anything)
    with pytest.raises(Unreachable, match="refused"):
        await connect(("127.0.0.1",), port, _anything)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_the_hosts_own_resolver_is_asked_and_remembered() -> None:
    resolver = SystemResolver()
    try:
        assert "127.0.0.1" in await resolver("localhost")
        assert await resolver("localhost") == await resolver("localhost")
    finally:
        resolver.close()
