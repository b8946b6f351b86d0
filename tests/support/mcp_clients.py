"""The MCP clients of other people, as they are published: installed once for all test runs of this machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from k8e.setup.provision import Provisioned

__all__ = ["NodeClients", "node_clients"]

PACKAGES = ("@modelcontextprotocol/sdk@^1.32", "@modelcontextprotocol/inspector@^0.15")
INSTALL_S = 300.0
RUN_S = 100.0
TYPESCRIPT = Path(__file__).resolve().parents[1] / "clients" / "mcp_clients" / "typescript.mjs"


class NodeClients:
    def __init__(self, home: Path) -> None:
        self._home = home

    def typescript(self, argv: Sequence[str], environ: dict[str, str]) -> str:
        """What the official client prints of a server that it starts, or that is at a URL."""
        # A module finds its packages above itself; the directory is all test runs', so the program has one of its own.
        with tempfile.TemporaryDirectory(dir=self._home) as own:
            program = shutil.copy(TYPESCRIPT, own)
            return self._printed(["node", program, *argv], environ)

    def inspector(self, argv: Sequence[str], environ: dict[str, str]) -> str:
        """What the Inspector's command line prints."""
        return self._printed([str(self._home / "node_modules" / ".bin" / "mcp-inspector"), "--cli", *argv], environ)

    def _printed(self, argv: Sequence[str], environ: dict[str, str]) -> str:
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=RUN_S, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="session")
def node_clients(host: Provisioned) -> NodeClients:
    """`host` has Node and npm: k8e's own set-up installs them for `--lang node`."""
    mark = hashlib.sha256(repr(PACKAGES).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "k8e-tests"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"mcp-clients-{mark}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            install(home)
    return NodeClients(home)


def install(home: Path) -> None:
    """All of it, or nothing: a half of it would be there for ever."""
    unfinished = home.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    options = ["--no-audit", "--no-fund", "--no-update-notifier", "--no-package-lock", "--omit=dev"]
    argv = ["npm", "install", "--prefix", str(unfinished), *options, *PACKAGES]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr
    unfinished.rename(home)
