"""What the egress daemon has sent is dealt with when somebody asks for that, however little the loop has run."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from k8e.egress.client import _Channel
from k8e.egress.control import dial
from k8e.model import Decision, SandboxId, Verdict
from k8e.policy import wire

pytestmark = pytest.mark.anyio

COUNT = 1000
DENIED = Decision(at=1.0, sandbox=SandboxId("sb-x"), verdict=Verdict.DENIED, protocol="tls", name="a.example", port=443)
LINE = json.dumps({"decision": wire.decision_to_json(DENIED)}).encode() + b"\n"


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "s"))
    made.listen()
    return made


async def test_all_that_was_sent_is_dealt_with_when_it_has_caught_up(listener: socket.socket, tmp_path: Path) -> None:
    heard: list[Decision] = []
    channel = _Channel(*await dial(tmp_path / "s"), heard.append)
    daemon, _ = listener.accept()
    with listener, daemon:
        reading = asyncio.ensure_future(channel.read())
        await asyncio.sleep(0)
        # Not through the loop: when this returns, the kernel has it and nobody else.
        daemon.sendall(LINE * COUNT)
        assert not heard, "the control"
        await channel.caught_up()
        assert heard == [DENIED] * COUNT
        await channel.caught_up()  # there is nothing to wait for
        daemon.close()
        await reading
        await channel.caught_up()  # nor when it is gone


async def test_a_line_that_has_only_begun_is_waited_for(listener: socket.socket, tmp_path: Path) -> None:
    heard: list[Decision] = []
    channel = _Channel(*await dial(tmp_path / "s"), heard.append)
    daemon, _ = listener.accept()
    with listener, daemon:
        reading = asyncio.ensure_future(channel.read())
        daemon.sendall(LINE[:20])
        catching_up = asyncio.ensure_future(channel.caught_up())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not catching_up.done()
        daemon.sendall(LINE[20:])
        await asyncio.wait_for(catching_up, 60)
        assert heard == [DENIED]
        daemon.close()
        await reading
