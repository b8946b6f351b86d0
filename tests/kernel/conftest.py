"""Fixtures for the substrate alone, and for what lies beyond its network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bare_sandboxes import boxes, substrate
from tests.support.upstreams import CLOSED, OPEN, Upstream, upstream

__all__ = ["boxes", "far", "substrate"]


@pytest.fixture
def far() -> Iterator[Upstream]:
    """A server that echoes on the port that policies allow, and on the one that they do not."""
    with upstream() as server:
        server.echo(OPEN)
        server.echo(CLOSED)
        yield server
