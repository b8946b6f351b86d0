"""A sandbox that dies under calls which are on their way: each of them says that it is lost, not that we are broken.

Clients make a lost session anew by themselves, and only a lost one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from k8e.engine import boxes
from k8e.errors import SandboxLost
from k8e.model import Runtime
from tests.support.cells import OWNER, Cell, CellFactory, chunks

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to report a death than a caller would be kept waiting for it."""
    monkeypatch.setattr(boxes, "_DYING_S", 60.0)


Kill = Callable[[Cell], None]


async def _watch(cell: Cell) -> object:
    return [change async for change in cell.engine.watch(OWNER, cell.id, "/workspace")]


_CALLS: dict[str, Callable[[Cell], Awaitable[object]]] = {
    "stat": lambda cell: cell.engine.stat_file(OWNER, cell.id, "/workspace"),
    "list": lambda cell: cell.engine.list_files(OWNER, cell.id, "/workspace"),
    "read": lambda cell: cell.read("/etc/passwd"),
    "write": lambda cell: cell.engine.write_file(OWNER, cell.id, "/workspace/f", chunks(b"x")),
    "watch": _watch,
    "processes": lambda cell: cell.engine.processes(OWNER, cell.id),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
async def test_a_call_that_nobody_is_left_to_answer_says_that_the_sandbox_is_lost(
    runtime: Runtime, cells: CellFactory, kill_sandbox: Kill, call: Callable[[Cell], Awaitable[object]]
) -> None:
    async with cells(runtime) as cell:
        kill_sandbox(cell)
        # Asked in the same turn: neither the end of the link nor the death can have been heard of.
        with pytest.raises(SandboxLost):
            await call(cell)


async def test_a_file_whose_sandbox_dies_half_way_says_that_it_is_lost(
    runtime: Runtime, cells: CellFactory, kill_sandbox: Kill
) -> None:
    async with cells(runtime) as cell:

        async def for_ever() -> AsyncIterator[bytes]:
            yield b"x"
            kill_sandbox(cell)
            while True:
                yield b"x" * 65536

        with pytest.raises(SandboxLost):
            await cell.engine.write_file(OWNER, cell.id, "/workspace/f", for_ever())
