"""Accepting when descriptors run out: in a process of its own, where nobody else opens or closes any meanwhile.

`python -m tests.unit.egress.test_sockets` is that process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.egress import sockets
from k8e.egress.sockets import accepted

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[3]


def test_who_comes_while_no_descriptor_is_free_is_taken_later_without_spinning() -> None:
    argv = [sys.executable, "-m", "tests.unit.egress.test_sockets"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "taken\n"), done.stderr


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


async def _main() -> None:
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
            began = loop.time()
            caller.connect(listener.getsockname())
            while not calls:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            # Once for each breath that was taken: on a busy machine that may be more than the first.
            assert calls <= 1 + (loop.time() - began) / sockets._BREATH_S, calls
            assert taken == []
        await arrived.wait()
        loop.remove_reader(listener)
        for client in taken:
            client.close()
    print("taken")


if __name__ == "__main__":
    asyncio.run(_main())
