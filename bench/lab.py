"""What every measure is given: a deployment to serve from, the alternatives, and how often to look."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.alternatives import BareRuntime
from bench.rows import Row
from bench.server import Deployment, ServerUnderTest
from k8e.client import Limits
from k8e.model import MIB, Runtime

__all__ = ["NO_POOL", "RUNTIMES", "Lab", "Measure", "odd_memory"]

NO_POOL = ("--pool-min", "0", "--pool-max", "0")
"""Flags for measures that must meet no other sandbox than their own."""
RUNTIMES = (Runtime.GVISOR, Runtime.CONTAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    deployment: Deployment
    bare: dict[Runtime, BareRuntime]
    n: int
    """How often each thing is measured."""
    is_quick: bool
    say: Callable[[str], None]

    def scaled(self, full: int, quick: int) -> int:
        """Sizes of crowds and loads: the real one, or one that only shows that the measure works."""
        return quick if self.is_quick else full

    @contextlib.contextmanager
    def session(self, server: ServerUnderTest, runtime: Runtime) -> Iterator[str]:
        """A live session for the length of a block."""
        session_id = server.client.create_session(runtime)
        try:
            yield session_id
        finally:
            server.client.destroy_session(session_id)


Measure = Callable[[Lab], Iterator[Row]]


def odd_memory(turn: int) -> Limits:
    """Limits that no pool has in store, so that the session starts cold."""
    return Limits(memory_bytes=(513 + turn) * MIB)
