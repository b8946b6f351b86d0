"""The real engine on bare sandboxes, shared by a whole test session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.identity.sealing import FileSealer
from tests.support.bare_machine import BareMachine
from tests.support.leaks import Lend
from tests.support.substrates import over

__all__ = ["bare_dir", "bare_engine", "bare_machine"]


@pytest.fixture(scope="session")
def bare_dir(lend: Lend) -> Path:
    """The data directory of `bare_engine`."""
    return lend("bare-engine")


@pytest.fixture(scope="session")
def bare_machine(bare_dir: Path) -> BareMachine:
    """Where `bare_engine` has its sandboxes."""
    return BareMachine(bare_dir / "substrate")


@pytest.fixture(scope="session")
async def bare_engine(bare_machine: BareMachine, bare_dir: Path, anyio_backend: object) -> AsyncIterator[Engine]:
    settings = EngineSettings(data_dir=bare_dir)
    async with Engine.open(settings, over(bare_machine, min=1, max=2), FileSealer(bare_dir / "secrets.key")) as engine:
        yield engine
        await engine.destroy_all()
