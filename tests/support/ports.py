"""A port that stays a test's own while its server dies and comes back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["lasting_port"]


@contextmanager
def lasting_port() -> Iterator[int]:
    """Bound, and never listened at: the kernel gives it to nobody else, and a server that names it gets it all the same."""
    with socket.socket() as held:
        # Both have to allow it; `socket.create_server` does.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
