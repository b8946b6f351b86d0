"""What sessions use, read from outside, on every runtime."""

from __future__ import annotations

import asyncio

import pytest

from k8e.model import MIB, Code, Command, Language, OwnerId, SessionId, Usage
from tests.support.cells import OWNER, Cell

pytestmark = pytest.mark.anyio

_BURN = """
import time
while time.process_time() < 0.5:
    pass
"""
_HOLD = "x = bytearray(b'x' * 128 * 2**20); print('held', flush=True); input()"


async def _usage(cell: Cell, owner: OwnerId = OWNER) -> Usage:
    (usage,) = await cell.engine.usage([(owner, SessionId(cell.id))])
    return usage


async def test_work_is_seen_as_cpu_time(cell: Cell) -> None:
    before = await _usage(cell)
    await cell.py("pass")
    little = await _usage(cell)
    assert before.cpu_s <= little.cpu_s
    # gVisor also counts a program's time while the host lets it wait: on a busy machine the same work is begun again.
    async with asyncio.timeout(60):
        await cell.py(_BURN)
        while (await _usage(cell)).cpu_s - little.cpu_s < 0.4:
            await cell.py(_BURN)
    assert before.processes >= 1


async def test_memory_is_seen_while_it_is_held(cell: Cell) -> None:
    before = await _usage(cell)
    stream = await cell.engine.open_exec(OWNER, cell.id, Command(what=Code(Language.PYTHON, _HOLD), stdin=True))
    try:
        async with asyncio.timeout(60):
            await anext(aiter(stream))
        held = await _usage(cell)
    finally:
        await stream.close()
    assert held.memory_bytes - before.memory_bytes > 100 * MIB


async def test_a_session_that_is_not_there_uses_nothing(cell: Cell) -> None:
    assert await cell.engine.usage([(OWNER, SessionId("gone"))]) == [Usage(cpu_s=0, memory_bytes=0, processes=0)]
    assert await _usage(cell, OwnerId("uid:4711")) == Usage(cpu_s=0, memory_bytes=0, processes=0)
    assert (await _usage(cell)).memory_bytes > 0
