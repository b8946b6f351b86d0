"""What this machine must be able to do at all, said before anything is tried."""

from __future__ import annotations

import os
import re

from k8e.errors import HostUnsupported

__all__ = ["check", "version"]

_NEEDED = (5, 19)


def version(release: str) -> tuple[int, int]:
    """The first two numbers of `uname -r`."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check() -> None:
    """Raises: HostUnsupported, with the fix."""
    release = os.uname().release
    if version(release) < _NEEDED:
        raise HostUnsupported(
            f"Linux 5.19 or newer is needed (overlay over idmapped mounts); this is {release}: upgrade it"
        )
    if os.geteuid() != 0:
        raise HostUnsupported("sandboxes on this machine need root: start the server with sudo")
