"""The agents' HTTP door in this process, before a server of the test's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from k8e.client.discovery import Target
from k8e.web.serving import DoorSettings, Parting, Process, config, listening, opened

__all__ = ["agents_door", "nobody_comes_back"]


async def nobody_comes_back() -> bool:
    """A server that is not this door's to start."""
    return False


@asynccontextmanager
async def agents_door(
    target: Target, settings: DoorSettings | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve until the block ends; yields its address."""
    ready, partings = asyncio.Event(), list[Parting]()
    sock = listening(host, 0)
    async with (
        opened(sock, target, settings or DoorSettings(has_a2a=False), nobody_comes_back, partings) as app,
        asyncio.TaskGroup() as group,
    ):
        server = Process(config(app), ready.set, partings)
        group.create_task(server.serve(sockets=[sock]), name="agents' door")
        await ready.wait()
        yield f"http://{host}:{sock.getsockname()[1]}"
        server.stop()
