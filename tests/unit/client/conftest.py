"""A server over the real engine on bare sandboxes in a process of its own, once per file, and a client and a session of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from k8e.client import SandboxClient, Session
from k8e.client.discovery import Target, discover
from tests.support.door import server_process


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    root = tmp_path_factory.mktemp("server")
    with server_process(root):
        yield discover(environ={"K8E_DATA_DIR": str(root)})


@pytest.fixture(scope="module")
def by_tls(found: Target) -> Target:
    return dataclasses.replace(found, socket="")


@pytest.fixture(scope="module", params=["socket", "tls"])
def target(found: Target, by_tls: Target, request: pytest.FixtureRequest) -> Target:
    """The server by both ways that lead to it: they must not differ."""
    assert found.socket
    return found if request.param == "socket" else by_tls


@pytest.fixture
def client(target: Target) -> Iterator[SandboxClient]:
    with SandboxClient(target=target) as client:
        yield client


@pytest.fixture
def session(client: SandboxClient) -> Iterator[Session]:
    with client.create() as session:
        yield session
