"""The command line as whole processes, against one door per module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.door import server_process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("server")
    with server_process(root):
        yield root


@pytest.fixture
def environ(server: Path, tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "K8E_DATA_DIR": str(server)}


@pytest.fixture
def k8e(environ: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """`k8e sandbox …`."""

    def run(*words: str | bytes, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess[bytes]:
        argv = [sys.executable, "-m", "k8e.cli.main", "sandbox", *words]
        return subprocess.run(argv, input=stdin, capture_output=True, env=environ | extra, timeout=60, check=False)

    return run
