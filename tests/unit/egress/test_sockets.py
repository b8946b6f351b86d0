"""Accepting when descriptors run out."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k8e.egress.sockets import accepted

pytestmark = pytest.mark.anyio


@contextmanager
def _no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


async def test_who_comes_while_no_descriptor_is_free_is_taken_later_without_spinning() -> None:
    loop = asyncio.get_running_loop()
    taken: list[socket.socket] = []
    calls = 0
    arrived = asyncio.Event()

    def take() -> None:
        nonlocal calls
        calls += 1
        for client, _ in accepted(listener, take):
            taken.append(client)
            arrived.set()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as caller:
        listener.setblocking(False)
        loop.add_reader(listener, take)
        with _no_descriptor_left():
            caller.connect(listener.getsockname())
            for _ in range(50):
                await asyncio.sleep(0)
            assert (calls, taken) == (1, [])
        async with asyncio.timeout(5):
            await arrived.wait()
        loop.remove_reader(listener)
        for client in taken:
            client.close()
