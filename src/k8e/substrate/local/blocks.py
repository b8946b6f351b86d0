"""Host ids per sandbox: 65536 of them, its own for as long as it exists, so no two sandboxes share an owner.

Blocks are unique on the whole host, whatever data directories its servers have: each server claims windows of blocks
under /run and hands out single blocks from its own. A claim is a link to the data directory, so it appears at once with
its content, and one whose directory is gone is free again.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k8e.substrate.local.host.userns import Extent

__all__ = ["BLOCK_SIZE", "CLAIMS", "FIRST_ID", "WINDOW", "Blocks", "base_id", "disk_map", "sandbox_map"]

FIRST_ID = 1_000_000_000
"""Far above what login.defs, subuid ranges and systemd's dynamic users hand out."""
BLOCK_SIZE = 65_536
WINDOW = 128
"""Blocks per claim: enough for most servers at once, and leaves room for some four hundred of them."""
CLAIMS = Path("/run/k8e/blocks")
"""Emptied by a reboot, as every sandbox is."""
_MAX_WINDOWS = (2**32 - 2 - FIRST_ID) // BLOCK_SIZE // WINDOW


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
    """Hands out the lowest free block of this server's windows, to any thread."""

    def __init__(self, data_dir: Path, used: set[int], *, claims: Path = CLAIMS) -> None:
        """`used` are the blocks that the records on disk name."""
        self._data_dir = data_dir.resolve()
        self._used = used
        self._claims = claims
        self._windows: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Raises: OSError when the host has no ids left for another sandbox."""
        with self._lock:
            block = self._free()
            if block is None:
                self._claim_window()
                block = self._free()
            if block is None:
                raise OSError(f"no host ids are free; {self._claims} shows who has claimed them")
            self._used.add(block)
            return block

    def give_back(self, block: int) -> None:
        with self._lock:
            self._used.discard(block)

    def _free(self) -> int | None:
        blocks = (window * WINDOW + index for window in sorted(self._windows) for index in range(WINDOW))
        return next((block for block in blocks if block not in self._used), None)

    def _claim_window(self) -> None:
        """Take back what a server before us on this directory had, and add a window only if that is full."""
        with self._alone():
            owners = self._owners()
            self._windows = {window for window, owner in owners.items() if owner == self._data_dir}
            # A block from before /run was emptied still counts, if nobody else has come to own it.
            wanted = {block // WINDOW for block in self._used} - owners.keys()
            if self._free() is None:
                wanted.add(next((window for window in range(_MAX_WINDOWS) if window not in owners), -1))
            for window in wanted - {-1}:
                (self._claims / str(window)).symlink_to(self._data_dir)
                self._windows.add(window)

    def _owners(self) -> dict[int, Path]:
        owners: dict[int, Path] = {}
        for claim in self._claims.iterdir():
            if not claim.is_symlink():
                continue
            if claim.exists():
                owners[int(claim.name)] = claim.readlink()
            else:
                claim.unlink()
        return owners

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other server claims meanwhile: two could take the same claim for stale, and one remove the other's."""
        self._claims.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._claims / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
