"""The gRPC door over the fake engine, in this process or in one of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from k8e.client.discovery import Target
from k8e.doors.grpc import Address, serve
from k8e.doors.service import ServerFacts, Service
from k8e.identity import Identifier, LoopbackIdentifier, SocketTable, ensure_server_certificate, uid_owner
from k8e.model import SessionSpec
from tests.support.fake_engine import FakeEngine

__all__ = ["OpenDoor", "open_door", "server_process"]

NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class OpenDoor:
    target: Target
    engine: FakeEngine
    stopped: asyncio.Event


@asynccontextmanager
async def open_door(
    root: Path, *, identifier: Identifier | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[OpenDoor]:
    """A served door on a free port; sessions live under `root`."""
    certificate = ensure_server_certificate(
        root / "server" / "tls", names=NAMES, now=datetime.datetime.now(datetime.UTC)
    )
    stopped = asyncio.Event()
    with contextlib.closing(SocketTable()) as sockets:
        async with asyncio.TaskGroup() as group:
            engine = FakeEngine(root / "engine", group)
            service = Service(engine, defaults=SessionSpec(), facts=facts(root, stopped))
            serving = serve(
                service,
                address=Address(host, 0),
                credentials=certificate,
                identify=lambda address: (
                    identifier or LoopbackIdentifier(address.host, address.port, sockets, operator=os.geteuid())
                ),
            )
            async with serving as address:
                roots = certificate.ca_path.read_bytes()
                yield OpenDoor(Target(endpoint=str(address), found="test", roots=roots), engine, stopped)
            await engine.close()


def facts(root: Path, stopped: asyncio.Event) -> ServerFacts:
    return ServerFacts(
        pid=os.getpid(),
        data_dir=str(root),
        version="0",
        doors=dict,
        operator=uid_owner(os.geteuid()),
        stop=lambda destroy: stopped.set(),
    )


@contextmanager
def server_process(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same in a process of its own, found by clients through `K8E_DATA_DIR=root`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.door", str(root)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the server did not start"
        yield process
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


async def main(root: Path) -> None:
    async with open_door(root) as door:
        stack = contextlib.ExitStack()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, door.stopped.set)
        doors = {"pid": os.getpid(), "doors": {"grpc": f"grpcs://{door.target.endpoint}"}}
        held = stack.enter_context((root / "server" / "lock").open("a"))
        fcntl.flock(held, fcntl.LOCK_EX)
        (root / "server" / "server.json").write_text(json.dumps(doors))
        with contextlib.suppress(BrokenPipeError):
            print("ready", flush=True)
        with stack:
            await door.stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    asyncio.run(main(parser.parse_args().root))
