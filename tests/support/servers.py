"""The real server as a process of its own: started, killed, started again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from k8e.cli.daemon import wait_stopped
from k8e.cli.running import is_running
from k8e.client import SandboxClient
from k8e.client.discovery import Target, discover
from k8e.setup.provision import Provisioned
from tests.support.leaks import Lend
from tests.support.places import TOOLS_DIR
from tests.support.ports import lasting_port
from tests.support.prepared_images import use_prepared_images

__all__ = ["NO_POOL", "Server", "client", "server"]

NO_POOL: Final = ("--pool-min", "0", "--pool-max", "0")
"""For servers whose pool no test looks at: nothing is booted that nobody claims."""
_PATIENCE_S = 60.0
_PAUSE_S = 0.01


class Server:
    """One data directory and whichever process serves it now."""

    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        tools_dir: Path = TOOLS_DIR,
        listen: str = "127.0.0.1:0",
        program: Sequence[str] = ("-m", "k8e"),
    ) -> None:
        self.data_dir = data_dir
        self._program = program
        self._tools_dir = tools_dir
        self._flags = flags
        self._listen = listen
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What a client in another process needs to find this server."""
        return {**os.environ, "K8E_DATA_DIR": str(self.data_dir), "HOME": str(self.data_dir)}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        use_prepared_images(self.data_dir)
        argv = [sys.executable, *self._program, "server", "--data-dir", str(self.data_dir), *self._flags]
        with (self.data_dir / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, "--tools-dir", str(self._tools_dir), "--listen", self._listen],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.data_dir / "log").read_text()[-3000:])
            time.sleep(_PAUSE_S)

    def kill(self) -> None:
        """As the out-of-memory killer would. The next one is the test's: clients do not start it."""
        (self.data_dir / "server" / "settings.json").unlink()
        self.leave_to_clients()

    def leave_to_clients(self) -> None:
        """The same, and clients start the next one, which is theirs."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As an operator would; sessions stay."""
        return self._end(signal.SIGTERM)

    def destroy(self) -> None:
        """Remove everything."""
        is_clients = self._process is None and is_running(self.data_dir)
        if self._process is None and not is_clients:
            self.start()
        with SandboxClient(target=self.target()) as client:
            client.stop_server(destroy=True)
        if is_clients:
            wait_stopped(self.data_dir, _PATIENCE_S)
        else:
            self._wait()

    def target(self) -> Target:
        """As a client on this machine finds it."""
        return discover(environ={"K8E_DATA_DIR": str(self.data_dir)})

    def complaints(self) -> str:
        """What its log has of warnings and errors, the end of it."""
        lines = (self.data_dir / "log").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if " INFO " not in line)[-4000:]

    def by_tls(self) -> Target:
        """As a client elsewhere would come."""
        return dataclasses.replace(self.target(), socket="")

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads((self.data_dir / "server" / "server.json").read_text())
            return self._process is not None and known["pid"] == self._process.pid
        return False

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._wait()

    def _wait(self) -> int:
        assert self._process is not None
        code = self._process.wait(_PATIENCE_S)
        self._process = None
        return code


@pytest.fixture(scope="session")
def server(host: Provisioned, lend: Lend) -> Iterator[Server]:
    """One server for all tests that only want to talk to one."""
    server = Server(lend("server"), "--pool-min", "1", "--pool-max", "2")
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def mortal(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    """A server of the test's own, without a pool: it may be killed, and its memory and records are the test's doing.

    At one address, as an operator's is: clients by TLS find the next server where the last one was.
    """
    with lasting_port() as port:
        server = Server(data_dir, *NO_POOL, listen=f"127.0.0.1:{port}")
        server.start()
        yield server
        server.destroy()


@pytest.fixture
def client(server: Server) -> Iterator[SandboxClient]:
    with SandboxClient(target=server.target()) as client:
        yield client
