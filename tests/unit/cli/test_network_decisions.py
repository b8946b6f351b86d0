"""`egress`, and what `run` says about hosts that it could not reach, as whole processes.

The test decides for the network, so the server is in its process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from k8e.model import Verdict
from tests.support.decided import asking, decide, decision, denied_once
from tests.support.door import OpenDoor, open_server

pytestmark = pytest.mark.anyio

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def lines_of(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def server(data_dir: Path) -> Path:
    root = data_dir / "server"
    root.mkdir()
    return root


@pytest.fixture
async def door(server: Path) -> AsyncIterator[OpenDoor]:
    async with open_server(server) as door:
        yield door


async def test_decisions_are_one_line_each(door: OpenDoor, k8e: Run) -> None:
    (made,) = lines_of(await asyncio.to_thread(k8e, "create"))
    session_id = str(made["session_id"])
    told = [decision(door, session_id, verdict) for verdict in (Verdict.ALLOWED, Verdict.CLOSED)]
    await decide(door, *told)
    shown = lines_of(await asyncio.to_thread(k8e, "egress", session_id))
    assert [each["verdict"] for each in shown] == ["allowed", "closed"]
    assert shown[0]["name"] == "a.example"


async def test_decisions_are_followed_until_the_session_ends(door: OpenDoor, k8e: Run, environ: dict[str, str]) -> None:
    (made,) = lines_of(await asyncio.to_thread(k8e, "create"))
    session_id = str(made["session_id"])
    await decide(door, *(decision(door, session_id, verdict) for verdict in (Verdict.ALLOWED, Verdict.CLOSED)))
    argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", "egress", session_id, "--limit", "1", "--follow"]
    process = await asyncio.create_subprocess_exec(*argv, env=environ, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline())["verdict"] == "closed"
    await decide(door, decision(door, session_id, Verdict.DENIED))
    assert json.loads(await process.stdout.readline())["verdict"] == "denied"
    await asyncio.to_thread(k8e, "destroy", session_id)
    assert (await process.stdout.read(), await process.wait()) == (b"", 0)


async def test_run_tells_an_agent_which_host_to_ask_for(door: OpenDoor, k8e: Run, data_dir: Path) -> None:
    (plain,) = lines_of(await asyncio.to_thread(k8e, "run", "true"))
    assert "egress_denied" not in plain
    session_id = str(plain["session_id"])
    async with denied_once(door, session_id, data_dir):
        (told,) = lines_of(await asyncio.to_thread(k8e, "run", asking(data_dir)))
    assert told["egress_denied"] == [{"host": "a.example", "port": 443, "reason": "not on the list"}]
    async with denied_once(door, session_id, data_dir):
        raw = await asyncio.to_thread(k8e, "run", "--raw", asking(data_dir))
    assert raw.stderr == b"k8e: could not reach a.example:443: not on the list\n"
