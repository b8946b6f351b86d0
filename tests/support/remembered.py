"""What a sandbox still knows of a command that has ended."""

from __future__ import annotations

from k8e.errors import NotFound
from tests.support.cells import OWNER, Cell

__all__ = ["remembers"]


async def remembers(cell: Cell, exec_id: str) -> bool:
    """Whether whoever comes back for its end is told of it; asking changes nothing."""
    await cell.engine.processes(OWNER, cell.id)  # answered after all that was asked before
    stream = await cell.engine.attach_exec(OWNER, cell.id, exec_id, {})
    try:
        # Not closed: that would say that the end has been told.
        return [item async for item in stream] != []
    except NotFound:
        await stream.close(kill=False)
        return False
