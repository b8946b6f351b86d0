"""What every test shares: the leak checks and the loop that async tests run on."""

from __future__ import annotations

import pytest

__all__ = ["anyio_backend", "pytest_plugins"]

pytest_plugins = ["tests.support.leaks", "tests.support.skips"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The engine is asyncio's; so are its tests."""
    return "asyncio"
