"""A command has one reader at a time, the last one that came: only that one ends it by leaving."""

from __future__ import annotations

import asyncio

import pytest

from k8e.engine.process import Process
from k8e.engine.process_stream import Output
from k8e.errors import Conflict, InvalidSpec
from k8e.model import Command, Shell
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0
_LATER = 20


_SLEEPS = Command(what=Shell("echo on; exec sleep 600"))


async def _sleeps(cell: Cell) -> bool:
    return "sleep" in {each.comm for each in await cell.engine.processes(OWNER, cell.id)}


async def _ends(cell: Cell) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while await _sleeps(cell):
            await asyncio.sleep(0.01)


async def _goes_on(cell: Cell) -> bool:
    """Whether it still runs after whatever somebody's leaving has begun."""
    for _ in range(_LATER):
        assert (await cell.sh("echo and on")).stdout == b"and on\n"
    return await _sleeps(cell)


async def _reading(cell: Cell) -> Process:
    """The first reader of a command that is named "mine" and sleeps."""
    process = await cell.engine.open_exec(OWNER, cell.id, _SLEEPS, exec_id="mine")
    assert isinstance(await process.next(), Output)
    async with asyncio.timeout(_PATIENCE_S):
        while not await _sleeps(cell):
            await asyncio.sleep(0.01)
    return process


async def test_whoever_lost_a_command_to_another_reader_cannot_end_it_by_leaving(cell: Cell) -> None:
    first = await _reading(cell)
    second = await cell.engine.attach_exec(OWNER, cell.id, "mine", {}, stop=True)
    # The first one is told before the second one hears anything, and does not listen: its own reader is slow.
    assert isinstance(await second.next(), Output)
    await first.close()
    assert await _goes_on(cell)
    await second.close()
    await _ends(cell)


async def test_whoever_is_refused_before_the_sandbox_was_asked_ends_nobodys_command(cell: Cell) -> None:
    first = await _reading(cell)
    with pytest.raises(InvalidSpec, match="larger than 1 MiB"):
        await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("#" * 2_000_000)), exec_id="mine")
    assert await _goes_on(cell)
    await first.close()
    await _ends(cell)


async def test_a_command_that_another_one_is_named_after_does_not_end_it_by_leaving_unanswered(cell: Cell) -> None:
    first = await _reading(cell)
    another = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("sleep 601")), exec_id="mine")
    await another.close()
    assert await _goes_on(cell)
    await first.close()
    await _ends(cell)


async def test_nobody_who_leaves_unanswered_ends_a_command_that_is_not_his(cell: Cell) -> None:
    """Its reader may be gone, and come back for it."""
    first = await _reading(cell)
    await first.close(kill=False)
    another = await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell("sleep 601")), exec_id="mine")
    await another.close()
    assert await _goes_on(cell)
    again = await cell.engine.open_exec(OWNER, cell.id, _SLEEPS, exec_id="mine")
    await again.close()
    await _ends(cell)


@pytest.mark.parametrize("first_to_leave", [0, 1])
async def test_a_command_ends_with_its_reader_whoever_was_refused_meanwhile(cell: Cell, first_to_leave: int) -> None:
    first = await _reading(cell)
    others = [
        await cell.engine.open_exec(OWNER, cell.id, Command(what=Shell(f"echo {number}")), exec_id="mine")
        for number in range(2)
    ]
    for other in (others[first_to_leave], others[1 - first_to_leave]):
        with pytest.raises(Conflict, match="the name of another command"):
            await other.next()
        await other.close()
    assert await _goes_on(cell)
    await first.close()
    await _ends(cell)
