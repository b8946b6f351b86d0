"""One namespace per block that shifts owners on its mounts; made on first use, kept while the server runs."""

from __future__ import annotations

import threading

from k8e.substrate.local.blocks import disk_map
from k8e.substrate.local.host import userns

__all__ = ["IdMaps"]


class IdMaps:
    """Blocks are reused lowest first, so this stays as large as the largest number of sandboxes alive at once."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._making = threading.Lock()

    def descriptor(self, block: int) -> int:
        with self._making:
            if block not in self._descriptors:
                self._descriptors[block] = userns.create(disk_map(block))
            return self._descriptors[block]
