"""The real engine on the real kernel, shared by a whole test session, and sessions on it."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

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
from tests.support.places import TOOLS_DIR
from tests.support.prepared_images import use_prepared_images

__all__ = [
    "RUNTIMES",
    "SharedCells",
    "cell",
    "cells",
    "engine",
    "engine_dir",
    "engine_substrate",
    "host",
    "library",
    "runtime",
    "shared_cells",
    "substrate_for",
]

RUNTIMES = (Runtime.GVISOR, Runtime.CONTAINER)


@pytest.fixture(scope="session")
def host() -> Provisioned:
    """Everything installed; quick when it already is."""
    return ensure(TOOLS_DIR, Stderr(), env=os.environ)


def substrate_for(data_dir: Path, host: Provisioned, network: Network | None = None) -> LocalSubstrate:
    use_prepared_images(data_dir)
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
async def engine_substrate(host: Provisioned, engine_dir: Path, anyio_backend: object) -> AsyncIterator[LocalSubstrate]:
    """Where `engine` has its sandboxes."""
    async with EgressClient.open(engine_dir) as network:
        yield substrate_for(engine_dir, host, network)


@pytest.fixture(scope="session")
async def engine(engine_substrate: LocalSubstrate, engine_dir: Path, anyio_backend: object) -> AsyncIterator[Engine]:
    settings = EngineSettings(data_dir=engine_dir, pool=PoolSettings(min=1, max=2))
    async with Engine.open(settings, engine_substrate, FileSealer(engine_dir / "secrets.key")) as engine:
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


SharedCells: TypeAlias = Callable[[Runtime], Awaitable[Cell]]


@pytest.fixture(scope="module")
async def shared_cells(engine: Engine) -> AsyncIterator[SharedCells]:
    """One session of each runtime for a whole file, made when its first test asks for it."""
    made: dict[Runtime, Cell] = {}
    async with AsyncExitStack() as stack:

        async def shared(runtime: Runtime) -> Cell:
            if runtime not in made:
                made[runtime] = await stack.enter_async_context(open_cell(engine, runtime))
            return made[runtime]

        yield shared


@pytest.fixture
async def cell(
    request: pytest.FixtureRequest, runtime: Runtime, cells: CellFactory, shared_cells: SharedCells
) -> AsyncIterator[Cell]:
    """A session of this test's own; where the test is marked so, one that others of the file use as well."""
    if request.node.get_closest_marker("shares_sandbox"):
        yield await shared_cells(runtime)
        return
    async with cells(runtime) as cell:
        yield cell
