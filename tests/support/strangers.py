"""Another user of this machine who connects and says little or nothing, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["NOBODY", "Crowd", "crowd_of"]

NOBODY = 65534
PATIENCE_S = 60.0

_PROGRAM = """
import os, resource, select, socket, sys
address, count, uid, comes_back, says = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True", sys.argv[5]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
if uid != os.geteuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)

def dialled():
    if address.startswith("/"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(address)
    else:
        host, _, port = address.rpartition(":")
        made = socket.create_connection((host, int(port)))
    if says:
        made.sendall(says.encode())
    return made

held, poll, gone = {}, select.poll(), 0
def hold(made):
    held[made.fileno()] = made
    poll.register(made, select.POLLIN | select.POLLHUP | select.POLLRDHUP)

for _ in range(count):
    hold(dialled())
poll.register(0, select.POLLIN | select.POLLHUP)
print("ready", flush=True)
while True:
    for number, _ in poll.poll():
        if number == 0:
            if not os.read(0, 1):
                sys.exit()
            print(gone, len(held), flush=True)
            continue
        try:
            if held[number].recv(65536):
                continue
        except OSError:
            pass
        poll.unregister(number)
        held.pop(number).close()
        gone += 1
        if comes_back:
            hold(dialled())
"""


@dataclass(frozen=True, slots=True)
class Crowd:
    process: asyncio.subprocess.Process

    async def count(self) -> tuple[int, int]:
        """How many of its connections were ended, and how many stand now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"?")
        async with asyncio.timeout(PATIENCE_S):
            gone, held = (await self.process.stdout.readline()).split()
        return int(gone), int(held)


@asynccontextmanager
async def crowd_of(
    count: int, address: str, *, uid: int = NOBODY, comes_back: bool = False, says: str = ""
) -> AsyncIterator[Crowd]:
    """So many connections to a path or `host:port`; with `comes_back`, another one for each that is ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        address,
        str(count),
        str(uid),
        str(comes_back),
        says,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"ready\n"
        yield Crowd(process)
    finally:
        process.stdin.close()
        await process.wait()
