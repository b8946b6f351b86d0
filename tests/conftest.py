"""What every test shares: the leak checks and the loop that async tests run on."""

from __future__ import annotations

import pytest

__all__ = ["anyio_backend", "pytest_addoption", "pytest_plugins"]

pytest_plugins = [
    "tests.support.leaks",
    "tests.support.skips",
    "tests.support.engines",
    "tests.support.servers",
    "tests.support.networked",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-step", action="store_true", help="inject a crash at every step, not at a sample of them")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The engine is asyncio's; so are its tests."""
    return "asyncio"
