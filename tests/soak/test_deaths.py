"""Clients are killed at random and the server twice: whoever lives on gets right answers, and nothing is left over."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.client import Chunk, Exit, NotFound, SandboxClient, SandboxLost
from k8e.model import Runtime
from k8e.setup.provision import Provisioned
from tests.support.engines import RUNTIMES
from tests.support.servers import Server

_CLIENTS = 3
_LINES = 50_000


@pytest.fixture
def mortal(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    server = Server(data_dir, "--pool-min", "1", "--pool-max", "4")
    server.start()
    yield server
    server.destroy()


class Crowd:
    """Restless clients: one that is killed is replaced, one that ends by itself has seen something wrong."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients = [self._new() for _ in range(_CLIENTS)]

    def _new(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.soak.restless_client"]
        return subprocess.Popen(argv, env=self._server.environ, stderr=subprocess.PIPE, text=True)

    def kill_one(self, source: random.Random) -> None:
        number = source.randrange(_CLIENTS)
        _end(self._clients[number])
        self._clients[number] = self._new()

    def check(self) -> None:
        for client in self._clients:
            assert client.poll() is None, client.stderr.read() if client.stderr else ""

    def close(self) -> None:
        for client in self._clients:
            _end(client)


def _end(client: subprocess.Popen[str]) -> None:
    client.kill()
    client.communicate()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(12.0, id="short", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(600.0, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_random_deaths_harm_nobody_else(mortal: Server, seconds: float) -> None:
    source = random.Random(1)
    with SandboxClient(target=mortal.target()) as client:
        runs = [_witness(client, runtime) for runtime in RUNTIMES]
    crowd = Crowd(mortal)
    with contextlib.closing(crowd):
        for part in range(3):
            _unrest(crowd, source, seconds / 3)
            if part < 2:
                mortal.kill()
                mortal.start()
    with SandboxClient(target=mortal.target()) as client:
        for sid, run_id in runs:
            client.write_file(sid, "/workspace/go", "")
            _check_complete(client, run_id)
        found = {view.session_id for view in client.sessions()}
        witnesses = {sid for sid, _ in runs}
        assert witnesses <= found
        for sid in witnesses:
            assert client.exec(sid, "echo alive").stdout == "alive\n"
            client.destroy_session(sid)
        for sid in found - witnesses:
            # It is alive, or ending just now: its client may have been killed while it asked for that.
            with contextlib.suppress(NotFound, SandboxLost):
                answer = client.exec(sid, "echo alive")
                assert answer.stdout == "alive\n" or answer.reason == "sandbox_lost", answer
                client.destroy_session(sid)


def _unrest(crowd: Crowd, source: random.Random, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(source.uniform(0.2, 1.5))
        crowd.check()
        crowd.kill_one(source)


def _witness(client: SandboxClient, runtime: Runtime) -> tuple[str, str]:
    """A background run that lives through all of it."""
    sid = client.create_session(runtime_class=runtime)
    return sid, client.start_run(
        sid, f"seq {_LINES}; until [ -e /workspace/go ]; do sleep 0.2; done; echo tail; exit 7"
    )


def _check_complete(client: SandboxClient, run_id: str) -> None:
    output = b""
    for item in client.attach_run(run_id):
        if isinstance(item, Chunk):
            assert item.offset == len(output)
            output += item.data
        else:
            assert isinstance(item, Exit)
            assert item.exit_code == 7
    assert output == b"".join(b"%d\n" % n for n in range(1, _LINES + 1)) + b"tail\n"
