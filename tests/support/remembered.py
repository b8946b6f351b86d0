"""What a sandbox still knows of a command that has ended."""

from __future__ import annotations

from tests.support.cells import OWNER, Cell

__all__ = ["remembers"]


async def remembers(cell: Cell, exec_id: str) -> bool:
    """Whether whoever comes back for its end is told of it; asking changes nothing."""
    await cell.engine.processes(OWNER, cell.id)  # answered after all that was asked before
    return any(each.exec_id == exec_id for each in await cell.engine.list_execs(OWNER, cell.id))
