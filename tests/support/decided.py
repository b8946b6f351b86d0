"""Decisions about the network of bare sandboxes: the test makes them, and the engine hears them as those of a daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from k8e.model import Decision, Verdict
from tests.support.door import OpenDoor

__all__ = ["asking", "decide", "decision", "denied_once"]

PATIENCE_S = 60.0


def decision(door: OpenDoor, session_id: str, verdict: Verdict, **fields: Any) -> Decision:
    """About a connection of a session, whoever owns it, to a.example:443."""
    (sandbox,) = [view.sandbox for view in door.engine.list_sessions(None) if view.session_id == session_id]
    assert sandbox is not None
    known = {"name": "a.example", "port": 443, "protocol": "tls", **fields}
    return Decision(at=time.time(), sandbox=sandbox, verdict=verdict, **known)


async def decide(door: OpenDoor, *decisions: Decision) -> None:
    """On return the engine has heard them."""
    for each in decisions:
        door.machine.asked.put_nowait(each)
    await asyncio.wait_for(door.machine.asked.join(), PATIENCE_S)


def asking(directory: Path) -> str:
    """A command that asks for a host and goes on when it is refused, for as long as `denied_once` lasts."""
    return f"touch {directory}/asked; until [ -e {directory}/refused ]; do sleep 0.01; done; rm {directory}/refused"


@asynccontextmanager
async def denied_once(door: OpenDoor, session_id: str, directory: Path, **fields: Any) -> AsyncIterator[None]:
    """Refuses a.example:443 to the command `asking` that runs in the block."""

    async def refuse() -> None:
        while not (directory / "asked").exists():
            await asyncio.sleep(0.01)
        (directory / "asked").unlink()
        refused = decision(door, session_id, Verdict.DENIED, **{"reason": "not on the list", **fields})
        await decide(door, refused)
        (directory / "refused").touch()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(refuse(), name="refuse")
        yield
