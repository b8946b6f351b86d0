"""Servers inside a sandbox: small programs that listen on a port the kernel chooses, and say which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from k8e.engine.engine import Engine
from k8e.model import Code, Command, Language
from tests.support.cells import OWNER

__all__ = ["ECHO", "GREET_THEN_LISTEN", "NEVER_READ", "POUR", "RESET", "TELL_END", "program", "serve", "settled"]

PATIENCE_S: Final = 60.0

_FRAME = """
import os, socket, struct, threading

def keep(name, content):
    with open("/workspace/" + name + ".new", "wb") as file:
        file.write(content)
    os.rename("/workspace/" + name + ".new", "/workspace/" + name)

def handle(peer):
{body}

def serve(peer):
    try:
        handle(peer)
    finally:
        peer.close()

listener = socket.create_server(({host!r}, 0), backlog=256, family={family})
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    threading.Thread(target=serve, args=(peer,), daemon=True).start()
"""

ECHO = """
while data := peer.recv(65536):
    peer.sendall(data)
"""
GREET_THEN_LISTEN = """
peer.sendall(b"all I have")
peer.shutdown(socket.SHUT_WR)
heard = b""
while data := peer.recv(65536):
    heard += data
keep("heard", heard)
"""
NEVER_READ = """
while not os.path.exists("/workspace/may-read"):
    threading.Event().wait(0.05)
heard = 0
while data := peer.recv(1 << 20):
    heard += len(data)
peer.sendall(b"%d" % heard)
"""
POUR = """
sent = 0
while sent < {size}:
    sent += peer.send(bytes(65536)[: {size} - sent])
    keep("sent", b"%d" % sent)
"""
RESET = """
peer.recv(1)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""
TELL_END = """
peer.sendall(b"hello")
try:
    while peer.recv(65536):
        pass
    keep("end", b"eof")
except ConnectionResetError:
    keep("end", b"reset")
"""


def program(body: str, host: str = "127.0.0.1") -> str:
    """A server whose threads run this body with `peer`, a connected socket; it prints its port first."""
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    family = "socket.AF_INET6" if ":" in host else "socket.AF_INET"
    return _FRAME.format(body=indented, host=host, family=family)


async def serve(engine: Engine, session_id: str, body: str, host: str = "127.0.0.1") -> int:
    """Start one in the background; its port once it listens."""
    command = Command(what=Code(Language.PYTHON, program(body, host)), timeout_s=0)
    run = await engine.start_run(OWNER, session_id, command)
    async with asyncio.timeout(PATIENCE_S):
        while not (line := (await engine.poll_run(OWNER, run.run_id)).stdout).endswith(b"\n"):
            assert (await engine.poll_run(OWNER, run.run_id)).outcome is None, await engine.poll_run(OWNER, run.run_id)
            await asyncio.sleep(0.02)
    return int(line)


async def settled(count: Callable[[], int]) -> int:
    """What something has come to that has begun and stands still."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            before = count()
            await asyncio.sleep(0.5)
            if before and before == count():
                return before
