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
    parser.addoption("--soak-calls", type=int, help="how many calls the crowd makes")
    parser.addoption("--soak-clients", type=int, help="how many clients the crowd has")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The engine is asyncio's; so are its tests."""
    return "asyncio"
