"""The service over the real engine on bare sandboxes in this process, with its MCP clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.door import OpenDoor, open_door
from tests.support.mcp_wire import Wire, wire


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path) as door:
        yield door


@pytest.fixture
async def lines(door: OpenDoor) -> AsyncIterator[Wire]:
    """A client that has not said anything yet."""
    async with wire(door.target) as lines:
        yield lines
