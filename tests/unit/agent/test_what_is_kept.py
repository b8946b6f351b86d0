"""What PID 1 keeps of work that is over: nothing, however long its link lives and however often it is asked."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from k8e.wire import frames
from k8e.wire.aio import Link, RemoteError
from k8e.wire.mux import Mux
from tests.support.agents import AgentRoot, dialled, execute, follow, request
from tests.support.credentials import CREDENTIALS
from tests.support.descriptors import descriptors, opened_and_kept
from tests.support.memory import resident_bytes

pytestmark = pytest.mark.anyio

MIB = 2**20
READ = {"path": "/workspace/file", "offset": 0, "length": None}


def pid_of(root: AgentRoot) -> int:
    """On the host."""
    parent = root.process.pid
    return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])


def resident(root: AgentRoot) -> int:
    return resident_bytes(pid_of(root))


async def test_output_that_was_read_is_kept_no_longer_than_its_stream(agent_root: AgentRoot, link: Link) -> None:
    await execute(link, shell="head -c 900000 /dev/zero > /workspace/file")
    await follow(await link.open("file.read", READ))
    before = resident(agent_root)
    for _ in range(150):
        assert len((await follow(await link.open("file.read", READ))).stdout) == 900_000
        await execute(link, shell="head -c 300000 /workspace/file")
    assert resident(agent_root) - before < 32 * MIB


async def test_a_dialer_that_comes_and_goes_costs_nothing_when_it_is_gone(agent_root: AgentRoot, link: Link) -> None:
    def come_and_go(times: int) -> None:
        for _ in range(times):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(agent_root.socket))

    await asyncio.to_thread(come_and_go, 50)
    await execute(link, shell="true")
    before = resident(agent_root)
    await asyncio.to_thread(come_and_go, 1500)
    await execute(link, shell="true")
    assert resident(agent_root) - before < 32 * MIB


async def test_reading_a_fifo_takes_nothing_from_those_who_use_it(agent_root: AgentRoot, link: Link) -> None:
    writing = await link.open("exec", request(shell="mkfifo f; echo made; echo data > f"))
    await writing.receive()
    await writing.receive()
    for _ in range(20):
        with pytest.raises(RemoteError, match="not a regular file"):
            await follow(await link.open("file.read", {**READ, "path": "/workspace/f"}))
    assert (await execute(link, shell="cat f")).stdout == b"data\n"
    assert (await follow(writing)).exited["code"] == 0


async def test_requests_that_fail_or_are_cancelled_leave_no_descriptor(agent_root: AgentRoot, link: Link) -> None:
    await execute(link, shell="mkdir d; touch d/a")
    listed = {"path": "/workspace/d", "recursive": True}
    pid = pid_of(agent_root)
    before = descriptors(pid)
    for _ in range(20):
        with pytest.raises(RemoteError, match="page_token"):
            await follow(await link.open("file.list", {**listed, "after": "/elsewhere/a"}))
    for op, args in (("file.list", listed), ("file.watch", listed), ("file.read", READ)):
        for _ in range(20):
            # Opened and cancelled in one piece.
            await asyncio.to_thread(_say, agent_root.socket, op, args)
    async with dialled(agent_root) as again:
        assert (await execute(again, shell="ls d")).stdout == b"a\n"
        # Of two links the older may still be open, and this one is.
        assert opened_and_kept(before, pid=pid, allowed=2) == []


def _say(path: Path, op: str, args: dict[str, object]) -> None:
    """As a dialer that hangs up at once."""
    mux = Mux(is_dialer=True)
    mux.hello(CREDENTIALS.fields())
    number = mux.open(op, {**args})
    said = b"".join(mux.output(MIB)) + frames.frame(number, frames.CANCEL)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))  # without a time limit it waits while the backlog is full
        peer.sendall(said)
