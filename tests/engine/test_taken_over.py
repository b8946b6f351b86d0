"""A command has one reader at a time, the last one that came: only that one ends it by leaving."""

from __future__ import annotations

import asyncio

import pytest

from k8e.engine.process_stream import Output
from k8e.model import Command, Shell
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0
_LATER = 20


async def _sleeps(cell: Cell) -> bool:
    return "sleep" in {each.comm for each in await cell.engine.processes(OWNER, cell.id)}


async def test_whoever_lost_a_command_to_another_reader_cannot_end_it_by_leaving(cell: Cell) -> None:
    command = Command(what=Shell("echo on; exec sleep 600"))
    first = await cell.engine.open_exec(OWNER, cell.id, command, exec_id="mine")
    assert isinstance(await first.next(), Output)
    second = await cell.engine.attach_exec(OWNER, cell.id, "mine", {}, stop=True)
    # The first one is told before the second one hears anything, and does not listen: its own reader is slow.
    assert isinstance(await second.next(), Output)
    async with asyncio.timeout(_PATIENCE_S):
        while not await _sleeps(cell):
            await asyncio.sleep(0.01)
    await first.close()
    for _ in range(_LATER):  # whatever leaving has begun is over by then
        assert (await cell.sh("echo and on")).stdout == b"and on\n"
    assert await _sleeps(cell)
    await second.close()
    async with asyncio.timeout(_PATIENCE_S):
        while await _sleeps(cell):
            await asyncio.sleep(0.01)
