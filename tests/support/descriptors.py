"""What a process has open, one by one: their number alone also changes when an older test's waste is collected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Descriptors", "descriptors", "opened_and_kept"]

Descriptors: TypeAlias = frozenset[tuple[int, str]]
"""Number and target; the targets of sockets and pipes carry their inode, so a number used again shows."""

_PATIENCE_S: Final = 60.0


def descriptors(pid: int | str = "self") -> Descriptors:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add((int(link.name), str(link.readlink())))
        except OSError:
            continue  # closed between the two looks, as this listing's own always is
    return frozenset(found)


def opened_and_kept(since: Descriptors, *, pid: int | str = "self", allowed: int = 0) -> list[tuple[int, str]]:
    """What is open now and was not then, after work under way had its time to end; empty if no more than `allowed`."""
    deadline = time.monotonic() + _PATIENCE_S
    while len(new := descriptors(pid) - since) > allowed:
        if time.monotonic() > deadline:
            return sorted(new)
        time.sleep(0.01)
    return []
