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
from k8e.engine.settings import EngineSettings
from k8e.identity.sealing import FileSealer
from k8e.model import Runtime
from k8e.server import local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned, ensure
from k8e.setup.report import Stderr
from k8e.substrate.local.machine import LocalMachine
from k8e.substrate.local.network import Network
from tests.support.cells import Cell, CellFactory, open_cell
from tests.support.leaks import Lend
from tests.support.places import TOOLS_DIR
from tests.support.prepared_images import use_prepared_images
from tests.support.substrates import over

__all__ = [
    "RUNTIMES",
    "SharedCells",
    "cell",
    "cells",
    "engine",
    "engine_dir",
    "engine_machine",
    "host",
    "library",
    "local_dir",
    "local_engine",
    "local_machine",
    "machine_for",
    "runtime",
    "shared_cells",
]

RUNTIMES = (Runtime.GVISOR, Runtime.CONTAINER)


@pytest.fixture(scope="session")
def host() -> Provisioned:
    """Everything installed; quick when it already is."""
    return ensure(TOOLS_DIR, Stderr(), env=os.environ)


def machine_for(data_dir: Path, host: Provisioned, network: Network | None = None) -> LocalMachine:
    use_prepared_images(data_dir)
    return LocalMachine(local_settings(ServerSettings(data_dir=data_dir), host), network)


@pytest.fixture(scope="session")
def local_dir(lend: Lend) -> Path:
    """The data directory of `local_engine`."""
    return lend("engine")


@pytest.fixture(scope="session")
def library(local_dir: Path) -> Path:
    """Where `local_engine` looks for images by name."""
    path = local_dir / "images" / "library"
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
async def local_machine(host: Provisioned, local_dir: Path, anyio_backend: object) -> AsyncIterator[LocalMachine]:
    """Where `local_engine` has its sandboxes."""
    async with EgressClient.open(local_dir) as network:
        yield machine_for(local_dir, host, network)


@pytest.fixture(scope="session")
async def local_engine(local_machine: LocalMachine, local_dir: Path, anyio_backend: object) -> AsyncIterator[Engine]:
    settings = EngineSettings(data_dir=local_dir)
    async with Engine.open(
        settings, over(local_machine, min=1, max=2), FileSealer(local_dir / "secrets.key")
    ) as engine:
        yield engine
        await engine.destroy_all()


# The engine that a test has unless its folder chooses another.


@pytest.fixture(scope="session")
def engine_dir(local_dir: Path) -> Path:
    return local_dir


@pytest.fixture(scope="session")
def engine_machine(local_machine: LocalMachine) -> LocalMachine:
    return local_machine


@pytest.fixture(scope="session")
def engine(local_engine: Engine) -> Engine:
    return local_engine


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
