"""The real engine on the real kernel, shared by a whole test session, and sessions on it."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.egress.client import EgressClient
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, PoolSettings
from k8e.identity.sealing import FileSealer
from k8e.model import Runtime
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned, ensure
from k8e.setup.report import Stderr
from k8e.substrate.local.network import Network
from k8e.substrate.local.substrate import LocalSubstrate
from tests.support.cells import Cell, CellFactory, open_cell
from tests.support.leaks import Lend

__all__ = [
    "RUNTIMES",
    "TOOLS_DIR",
    "cell",
    "cells",
    "engine",
    "engine_dir",
    "host",
    "library",
    "runtime",
    "substrate_for",
]

RUNTIMES = (Runtime.GVISOR, Runtime.CONTAINER)
TOOLS_DIR = Path("/var/lib/k8e")
"""What set-up built is shared by all tests and by the server of this machine; sandboxes are not."""


@pytest.fixture(scope="session")
def host() -> Provisioned:
    """Everything installed; quick when it already is."""
    return ensure(TOOLS_DIR, Stderr(), env=os.environ)


def substrate_for(data_dir: Path, host: Provisioned, network: Network | None = None) -> LocalSubstrate:
    return LocalSubstrate(local_settings(ServerSettings(data_dir=data_dir), host), network)


@pytest.fixture(scope="session")
def engine_dir(lend: Lend) -> Path:
    """The data directory of `engine`."""
    return lend("engine")


@pytest.fixture(scope="session")
def library(engine_dir: Path) -> Path:
    """Where `engine` looks for images by name."""
    path = engine_dir / "images" / "library"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
async def engine(host: Provisioned, engine_dir: Path, anyio_backend: object) -> AsyncIterator[Engine]:
    settings = EngineSettings(data_dir=engine_dir, pool=PoolSettings(min=1, max=4))
    sealer = FileSealer(engine_dir / "secrets.key")
    async with (
        EgressClient.open(engine_dir) as network,
        Engine.open(settings, substrate_for(engine_dir, host, network), sealer) as engine,
    ):
        yield engine
        await engine.destroy_all()


@pytest.fixture(params=RUNTIMES, ids=str)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    chosen: Runtime = request.param
    return chosen


@pytest.fixture
def cells(engine: Engine) -> CellFactory:
    """Makes sessions: `async with cells(runtime, limits=…) as cell`."""
    return functools.partial(open_cell, engine)


@pytest.fixture
async def cell(runtime: Runtime, cells: CellFactory) -> AsyncIterator[Cell]:
    async with cells(runtime) as cell:
        yield cell
