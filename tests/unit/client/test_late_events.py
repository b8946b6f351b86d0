"""Two clients in one process: what grpc still has for the loop of the one that is closed is no trouble of the other's."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, socket, sys, threading
from grpc import aio
from k8e.client.sync import loop as subject

seen = threading.Event()

def left_behind(silent):
    loop, kept = asyncio.new_event_loop(), []

    async def begin():
        kept.append(aio.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}"))
        kept.append(kept[0].unary_unary("/a/b")(b""))
        await asyncio.to_thread(lambda: kept.append(silent.accept()[0]))

    loop.run_until_complete(begin())
    loop.close()
    return kept

def note(loop, trouble):
    (handle if sys.argv[1] == "ours" else type(loop).default_exception_handler)(loop, trouble)
    seen.set()

handle, subject._handle = subject._handle, note
aio.init_grpc_aio()
other = subject.LoopThread()

async def listens():
    return aio.insecure_channel("127.0.0.1:1")

channel = other.wait(listens())
with socket.create_server(("127.0.0.1", 0)) as silent:
    kept = left_behind(silent)
    kept[-1].close()
print(seen.wait(60))
other.wait(channel.close())
other.close()
"""


@pytest.mark.parametrize("whose", ["ours", "asyncio's"])
def test_an_event_that_comes_too_late_for_a_closed_loop_is_no_error_of_another(whose: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, whose], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "True\n"
    assert ("Event loop is closed" in done.stderr) == (whose != "ours"), done.stderr
    if whose == "ours":
        assert done.stderr == ""
