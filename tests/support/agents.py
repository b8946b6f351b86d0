"""A real agent as PID 1 of a private root: the host's files under an overlay, its own /tmp, /workspace and /opt/venv."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import k8e
from k8e.agent import hook
from k8e.wire.aio import Data, Event, Link, Stream
from tests.support.credentials import CREDENTIALS

__all__ = [
    "TIMEOUT_S",
    "AgentRoot",
    "Finished",
    "agent_root",
    "agent_venv",
    "build_venv",
    "dialled",
    "execute",
    "follow",
    "link",
    "request",
    "start_agent",
]

SOURCE = Path(k8e.__file__).parent.parent
TIMEOUT_S = 60.0
_PYTHON = "/usr/bin/python3"

_SETUP = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
cd "$1/root"
mkdir -p proc dev tmp workspace opt/venv .k8e .k8e-run .k8e-src .host
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs workspace
mount --bind "$2" .k8e-run
mount --bind "$3" .k8e-src
if [ -d "$4" ]; then
    cp -a "$4/." opt/venv/
    cp .k8e-src/k8e/agent/park.py .k8e/park.py
fi
python=$5
# The host's mounts go: a copy of another test's disk in this namespace would keep that disk busy.
pivot_root . .host
cd /
umount -l .host
shift 5
exec "$python" -S -s -B -m k8e.agent "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRoot:
    """A running agent and where to dial it."""

    socket: Path
    process: subprocess.Popen[bytes]


@dataclass(slots=True, kw_only=True)
class Finished:
    """Everything a command said."""

    stdout: bytes
    stderr: bytes
    exited: Mapping[str, Any]
    events: list[Event] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        code: int | None = self.exited["code"]
        return code


def build_venv(target: Path) -> Path:
    """An environment that believes to live in /opt/venv, with the parking hook."""
    subprocess.run([_PYTHON, "-m", "venv", "--without-pip", "--symlinks", str(target)], check=True, timeout=60)
    config = target / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(target), "/opt/venv"))
    for site in target.glob("lib/python3*/site-packages"):
        for name, text in hook.site_files().items():
            (site / name).write_text(text + "\n")
        # A module that is compiled at its first use changes the directory, and that is a reason not to park.
        subprocess.run([_PYTHON, "-m", "compileall", "-q", str(site)], check=True, timeout=60)
    return target


def start_agent(
    base: Path,
    venv: Path | None,
    *,
    secret: str = CREDENTIALS.secret,
    argv: Sequence[str] = ("--socket", "/.k8e-run/agent.sock"),
) -> AgentRoot:
    """Start it under new mount and PID namespaces; it is dead when `process` is."""
    (base / "root").mkdir()
    (base / "run").mkdir(exist_ok=True)
    (base / "run" / "secret").write_text(secret)
    places = [str(base / "root"), str(base / "run"), str(SOURCE), str(venv or ""), _PYTHON, *argv]
    process = subprocess.Popen(
        ["unshare", "--fork", "--pid", "--mount", "--ipc", "--uts", "--kill-child", "sh", "-c", _SETUP, "sh", *places],
        env={"PYTHONPATH": "/.k8e-src", "PATH": os.environ.get("PATH", os.defpath)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return AgentRoot(socket=base / "run" / "agent.sock", process=process)


@asynccontextmanager
async def dialled(root: AgentRoot) -> AsyncIterator[Link]:
    """A link to the agent, once it listens."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                found = await Link.dial(root.socket, CREDENTIALS, timeout_s=TIMEOUT_S)
                break
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                if root.process.poll() is not None:
                    raise AssertionError("the agent did not start") from None
                await asyncio.sleep(0.005)
    async with found:
        yield found


def request(**changes: Any) -> dict[str, Any]:
    """The arguments of an exec."""
    args = {"id": uuid.uuid4().hex, "argv": None, "shell": None, "language": None, "code": None, "cwd": "/workspace"}
    return {**args, "env": {}, "user": "", "stdin": False, "pty": None, "timeout_s": None, **changes}


async def follow(stream: Stream) -> Finished:
    """Everything until the stream's end, acknowledged as it comes."""
    chunks: dict[int, list[bytes]] = {1: [], 2: []}
    events: list[Event] = []
    async with asyncio.timeout(TIMEOUT_S):
        while (item := await stream.receive()) is not None:
            if isinstance(item, Data):
                chunks[item.channel].append(item.payload)
                stream.ack(item.channel, item.offset + len(item.payload))
            else:
                events.append(item)
    exited = next((event.fields for event in events if event.name == "exited"), {})
    return Finished(stdout=b"".join(chunks[1]), stderr=b"".join(chunks[2]), exited=exited, events=events)


async def execute(link: Link, **changes: Any) -> Finished:
    """Run a command to its end and forget it."""
    args = request(**changes)
    finished = await follow(await link.open("exec", args))
    await link.call("forget", {"id": args["id"]})
    return finished


@pytest.fixture(scope="session")
def agent_venv(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Built once; None where the host has no system Python."""
    if not Path(_PYTHON).exists():
        return None
    return build_venv(tmp_path_factory.mktemp("venv") / "venv")


@pytest.fixture
def agent_root(tmp_path: Path, agent_venv: Path | None) -> Iterator[AgentRoot]:
    """An agent of this test's own."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a PID namespace with its own root needs root")
    root = start_agent(tmp_path, agent_venv)
    yield root
    root.process.kill()
    root.process.wait(timeout=TIMEOUT_S)


@pytest.fixture
async def link(agent_root: AgentRoot) -> AsyncIterator[Link]:
    """A link to this test's agent."""
    async with dialled(agent_root) as found:
        yield found
