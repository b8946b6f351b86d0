"""What every test shares: the leak checks and the loop that async tests run on."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from grpc import aio
from hypothesis import HealthCheck, settings

from tests.support.loop import Loop

__all__ = ["anyio_backend", "pytest_addoption", "pytest_plugins"]

pytest_plugins = [
    "tests.support.leaks",
    "tests.support.skips",
    "tests.support.engines",
    "tests.support.bare_engine",
    "tests.support.restartable_engine",
    "tests.support.servers",
    "tests.support.networked",
]


# A busy machine is no failure, and a run says the same as the one before; `--hypothesis-profile random` searches anew.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


# A shell that runs us in the background has us ignore the keyboard, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# grpc stops its thread with the last thing that uses it, and a test that comes just then can crash the whole run.
aio.init_grpc_aio()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-step", action="store_true", help="inject a crash at every step, not at a sample of them")
    parser.addoption("--every-program", action="store_true", help="compare all programs on every runtime")
    parser.addoption("--soak-calls", type=int, help="how many calls the crowd makes")
    parser.addoption("--soak-clients", type=int, help="how many clients the crowd has")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The engine is asyncio's; so are its tests."""
    return "asyncio", {"loop_factory": Loop}
