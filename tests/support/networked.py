"""The real engine with a real network behind it, a far server that it may reach, and names that tests choose."""

from __future__ import annotations

import functools
import http.server
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from k8e.egress import defaults
from k8e.egress.client import EgressClient
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.identity.sealing import FileSealer
from k8e.model import Runtime
from k8e.server import bundle_file, egress_settings, local_settings
from k8e.settings import ServerSettings
from k8e.setup.provision import Provisioned
from k8e.substrate.local.machine import LocalMachine
from tests.support import named_daemon
from tests.support.cells import Cell, CellFactory, open_cell
from tests.support.leaks import Lend
from tests.support.prepared_images import use_prepared_images
from tests.support.substrates import over
from tests.support.upstreams import Upstream, upstream

__all__ = ["HTTPS", "TALK", "World", "far", "networked", "reaching", "serve_files", "world"]

TALK, HTTPS = 7777, 443


@dataclass(frozen=True, slots=True)
class World:
    """What is outside: the engine that leads there, and how to change it."""

    engine: Engine
    data_dir: Path

    def names(self, names: Mapping[str, str]) -> None:
        """From now on these names have these addresses."""
        named_daemon.tell(self.data_dir, names)


@pytest.fixture(scope="session")
async def world(host: Provisioned, lend: Lend, anyio_backend: object) -> AsyncIterator[World]:
    data_dir = lend("world")
    (data_dir / "server").mkdir()
    registries = defaults.read(os.environ)
    server = ServerSettings(data_dir=data_dir)
    settings = EngineSettings(
        data_dir=data_dir / "engine",
        egress=egress_settings(server, registries),
    )
    daemon = named_daemon.start(data_dir)
    # Reaped at once when it ends: a zombie would be a trace.
    reaper = threading.Thread(target=daemon.wait, name="named daemon")
    reaper.start()
    files = bundle_file(data_dir, registries)
    async with EgressClient.open(data_dir, trust=registries.ca_bundle) as network:
        use_prepared_images(data_dir)
        substrate = LocalMachine(local_settings(server, host, files=files), network)
        async with Engine.open(settings, over(substrate, min=1, max=2), FileSealer(data_dir / "secrets.key")) as engine:
            yield World(engine, data_dir)
            await engine.destroy_all()
    reaper.join()


@pytest.fixture
def networked(world: World) -> CellFactory:
    """Makes sessions with a network: `async with networked(runtime, allowed_hosts=(…)) as cell`."""
    return functools.partial(open_cell, world.engine)


@pytest.fixture
def far(world: World) -> Iterator[Upstream]:
    """Echoes on one port; every name that a test gives it, it has."""
    with upstream() as server:
        server.echo(TALK)
        yield server
        world.names({})


@pytest.fixture
async def reaching(runtime: Runtime, networked: CellFactory, far: Upstream, world: World) -> AsyncIterator[Cell]:
    """A session that may reach `allowed.example` on one port, while `other.example` is there as well."""
    world.names({"allowed.example": far.address, "other.example": far.address})
    async with networked(runtime, allowed_hosts=(f"allowed.example:{TALK}",)) as cell:
        yield cell


def serve_files(server: Upstream, port: int, directory: Path, tls: ssl.SSLContext | None = None) -> None:
    """A plain web server on the far side."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    def converse(connection: socket.socket) -> None:
        stream = tls.wrap_socket(connection, server_side=True) if tls else connection
        try:
            Files(stream, ("", 0), cast("Any", None), directory=str(directory))
        finally:
            stream.close()

    server.listen(port, converse)
