"""The gRPC door over the real engine on bare sandboxes, in this process or in one of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8e.byte_budget import ByteBudget
from k8e.client.discovery import Target
from k8e.doors.connect import serve as serve_connect
from k8e.doors.grpc import Address, Door, FrontSettings, listening, serve
from k8e.doors.service import Edge, IdentityRpcs, McpRpcs, ServerFacts, Service
from k8e.doors.service.edge import Step
from k8e.doors.service.presence import IN_PERSON, Presence
from k8e.engine.engine import Engine
from k8e.engine.settings import EgressSettings, EngineSettings
from k8e.identity import KeyRing, Office, ServerCertificate, SocketTable, ensure_server_certificate
from k8e.identity.sealing import FileSealer
from k8e.inside import InsideMcp
from k8e.locks import show
from k8e.mcp.host import Host
from k8e.model import Gates, SessionSpec
from tests.support.bare_machine import BareMachine
from tests.support.substrates import over

__all__ = ["Clock", "OpenDoor", "open_door", "open_engine", "open_server", "server_process"]

NAMES = ("localhost", "127.0.0.1", "::1")
FRONT = FrontSettings()
NO_GATES = Gates()
PATIENCE_S = 60.0


@dataclass(slots=True)
class Clock:
    """The time that keys and certificates live by; tests move it."""

    ahead_s: float = 0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDoor:
    target: Target
    engine: Engine
    machine: BareMachine
    stopped: asyncio.Event
    door: Door
    edge: Edge
    keys: KeyRing
    clock: Clock
    credentials: ServerCertificate
    group: asyncio.TaskGroup = field(repr=False)
    agents: Host = field(repr=False)


@asynccontextmanager
async def open_door(
    root: Path,
    *,
    host: str = "127.0.0.1",
    loopback: bool = True,
    settings: FrontSettings = FRONT,
    steps: Sequence[Step] = (),
    answers: ByteBudget | None = None,
    requests: ByteBudget | None = None,
    mcp_grace_s: float = 60,
    presence: Presence = IN_PERSON,
    max_mcp_chars: int = 0,
    undrained: Callable[[], None] = lambda: None,
    gates: Gates = NO_GATES,
    shown: Path | None = None,
) -> AsyncIterator[OpenDoor]:
    """A served door on a free port; sessions live under `root`, and `gates` are those of all of them.

    `shown` (or else `root`) is inside every sandbox under the same path.
    """
    tls, stopped, clock = root / "server" / "tls", asyncio.Event(), Clock()
    now = datetime.datetime.now(datetime.UTC)
    credentials = ensure_server_certificate(tls, names=NAMES, now=now)
    office = Office.open(root / "server", clock=clock)
    with contextlib.closing(SocketTable()) as sockets, listening([Address(host, 0)]) as places:
        keeper = office.doorkeeper(sockets=sockets if loopback else None, operator=os.geteuid())
        machine = BareMachine(root / "substrate", shown=shown or root)
        async with asyncio.TaskGroup() as group, open_engine(root / "engine", machine, gates=gates) as engine:
            mcp = InsideMcp(office.keys, grace_s=mcp_grace_s)
            service = Service(
                engine,
                defaults=SessionSpec(),
                facts=facts(root, stopped, office.authority.fingerprint, max_mcp_chars),
                identity=IdentityRpcs(office),
                mcp=McpRpcs(mcp),
                presence=presence,
            )
            edge = Edge(service, keeper, steps=steps, answers=answers, requests=requests)
            serving = serve(
                edge,
                listening=places,
                credentials=credentials,
                directory=root / "server" / "run",
                settings=settings,
                undrained=undrained,
            )
            async with mcp.open(edge, sweeping=False) as agents, serving as door:
                yield OpenDoor(
                    target=Target(endpoint=str(door.bound[0]), found="test", roots=credentials.ca),
                    engine=engine,
                    machine=machine,
                    stopped=stopped,
                    door=door,
                    edge=edge,
                    keys=office.keys,
                    clock=clock,
                    credentials=credentials,
                    group=group,
                    agents=agents,
                )
                agents.leave()


@asynccontextmanager
async def open_engine(directory: Path, machine: BareMachine, **settings: Any) -> AsyncIterator[Engine]:
    """An engine that keeps no warm sandboxes, and in the end none at all."""
    chosen = EngineSettings(data_dir=directory, egress=EgressSettings(rules=()), **settings)
    directory.mkdir(parents=True, exist_ok=True)
    async with Engine.open(chosen, over(machine), FileSealer(directory / "secrets.key")) as engine:
        try:
            yield engine
        finally:
            await engine.destroy_all()


def facts(root: Path, stopped: asyncio.Event, fingerprint: str, max_mcp_chars: int) -> ServerFacts:
    return ServerFacts(
        pid=os.getpid(),
        data_dir=str(root),
        version="0",
        doors=dict,
        ca_fingerprint=fingerprint,
        stop=lambda destroy: stopped.set(),
        max_mcp_chars=max_mcp_chars,
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
        process.wait(PATIENCE_S)
        process.stdout.close()


@asynccontextmanager
async def open_server(root: Path) -> AsyncIterator[OpenDoor]:
    """A door that clients find through `K8E_DATA_DIR=root`, also by its unix socket.

    Its sandboxes see what is beside `root`: the directories of the tests that share the server.
    """
    async with (
        open_door(root, shown=root.parent) as door,
        serve_connect(door.edge, path=root / "server" / "k8e.sock") as connect,
    ):
        doors = {"pid": os.getpid(), "doors": {"grpc": f"grpcs://{door.target.endpoint}", "connect": connect}}
        with show(root / "server" / "lock"):
            (root / "server" / "server.json").write_text(json.dumps(doors))
            yield door


async def main(root: Path) -> None:
    async with open_server(root) as door:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, door.stopped.set)
        with contextlib.suppress(BrokenPipeError):
            print("ready", flush=True)
        await door.stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    asyncio.run(main(parser.parse_args().root))
