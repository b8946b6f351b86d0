"""Who this engine is to others on the same substrate: a name of its own, the same after every restart.

It lies beside the store and not in it: whoever moves a damaged store away still has its sandboxes, and removes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from k8e import full_disk, whole
from k8e.errors import StoreFailed
from k8e.random_ids import new_id

__all__ = ["gateway_id"]

_NAME: Final = re.compile(r"gw-[a-z2-7]{26}")


def gateway_id(path: Path) -> str:
    """The name that was written down, or a new one. Blocking. Raises: StoreFailed."""
    try:
        if not path.exists():
            whole.replace(path, new_id("gw").encode(), mode=0o600, durable=True)
        name = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise full_disk.explained(error, path.parent) or StoreFailed(f"{path}: {error.strerror}") from error
    if not _NAME.fullmatch(name):
        raise StoreFailed(
            f"{path} does not hold this server's name: restore it, or remove it to start with a new one "
            "(sandboxes that run now are then removed in an hour)"
        )
    return name
