"""The real `k8e` command against the real server, with a home of its own per test."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.client import NotFound, SandboxClient
from tests.support.servers import Server

__all__ = ["K8E", "Done", "Run", "environ", "k8e", "tidy", "told"]

K8E = Path(sys.executable).parent / "k8e"
Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]


@pytest.fixture
def tidy(client: SandboxClient) -> Iterator[None]:
    """Ends the sessions that a test made: the server is everybody's."""
    before = {session.session_id for session in client.sessions()}
    yield
    for session in client.sessions():
        if session.session_id not in before and not session.parent_session_id:
            with contextlib.suppress(NotFound):  # one may go with its client, in its own time
                client.destroy_session(session.session_id)


@pytest.fixture
def environ(server: Server, tmp_path: Path, tidy: None) -> dict[str, str]:
    """What a person's shell has: the command on PATH, a server, a home directory."""
    path = os.pathsep.join([str(K8E.parent), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(tmp_path), "K8E_DATA_DIR": str(server.data_dir), "LANG": "C.UTF-8"}


@pytest.fixture
def k8e(environ: dict[str, str]) -> Run:
    """Runs `k8e …` to its end."""

    def run(*words: str | bytes, stdin: bytes = b"", **extra: str) -> Done:
        argv = [str(K8E), *words]
        return subprocess.run(argv, input=stdin, capture_output=True, env=environ | extra, timeout=60, check=False)

    return run


def told(done: Done) -> dict[str, object]:
    """The one JSON line on standard output."""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, (done.stdout, done.stderr)
    value = json.loads(lines[0])
    assert isinstance(value, dict)
    return value
