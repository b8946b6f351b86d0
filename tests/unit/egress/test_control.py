"""The daemon's conversation with its server: no decision is told to somebody who has hung up."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from k8e.egress.control import Control, dial, encode
from k8e.model import Decision, SandboxId, Verdict

pytestmark = pytest.mark.anyio


def _decision(name: str) -> Decision:
    return Decision(
        at=1.0,
        sandbox=SandboxId("sb"),
        verdict=Verdict.DENIED,
        protocol="tcp",
        name=name,
        address="203.0.113.9",
        port=443,
    )


async def _nothing(_what: str, _fields: Mapping[str, object]) -> object:
    return None


async def test_what_is_decided_after_a_follower_left_in_a_hurry_waits_for_the_next_one(tmp_path: Path) -> None:
    path, control = tmp_path / "control", Control(_nothing)
    async with control.serving(path), asyncio.timeout(60):
        with socket.socket(socket.AF_UNIX) as hasty:
            hasty.connect(str(path))
            hasty.sendall(encode({"id": 1, "do": "follow"}))
            while control._listener is None:
                await asyncio.sleep(0)
            ends = control._listener
            control.tell(_decision("never read"))
        # What it left unread makes its end a reset, which is known before the conversation with it is over.
        while not ends[1].is_closing():
            await asyncio.sleep(0)
        control.tell(_decision("kept"))
        reader, writer = await dial(path)
        writer.write(encode({"id": 1, "do": "follow"}))
        while "decision" not in (heard := json.loads(await reader.readline())):
            pass
        assert heard["decision"]["name"] == "kept"
        writer.close()
        await writer.wait_closed()
