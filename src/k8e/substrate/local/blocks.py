"""Host ids per sandbox: 65536 of them, its own for as long as it exists, so no two sandboxes share an owner."""

from __future__ import annotations

import threading

from k8e.substrate.local.host.userns import Extent

__all__ = ["BLOCK_SIZE", "FIRST_ID", "Blocks", "base_id", "disk_map", "sandbox_map"]

FIRST_ID = 1_000_000_000
"""Far above what login.defs, subuid ranges and systemd's dynamic users hand out."""
BLOCK_SIZE = 65_536
_MAX_BLOCKS = (2**32 - 2 - FIRST_ID) // BLOCK_SIZE


def base_id(block: int) -> int:
    """The host's id of the sandbox's root."""
    return FIRST_ID + block * BLOCK_SIZE


def sandbox_map(block: int) -> tuple[Extent, ...]:
    """What processes of the sandbox live under."""
    return (Extent(0, base_id(block), BLOCK_SIZE),)


def disk_map(block: int) -> tuple[Extent, ...]:
    """How stored owners are shown to the sandbox.

    SAFETY: the second extent lets the host's root create what overlayfs needs in its work directory, which
    fails with EOVERFLOW for an unmapped owner. No process ever lives in this namespace; a sandbox that did
    could become host root through id 65536.
    """
    return (*sandbox_map(block), Extent(BLOCK_SIZE, 0, 1))


class Blocks:
    """Hands out the lowest free block, to any thread; knows the used ones from the records on disk."""

    def __init__(self, used: set[int]) -> None:
        self._used = used
        self._lock = threading.Lock()

    def take(self) -> int:
        """Raises: OverflowError after some fifty thousand sandboxes."""
        with self._lock:
            block = next((index for index in range(_MAX_BLOCKS) if index not in self._used), None)
            if block is None:
                raise OverflowError("no block of host ids is free")
            self._used.add(block)
            return block

    def give_back(self, block: int) -> None:
        with self._lock:
            self._used.discard(block)
