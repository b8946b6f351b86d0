"""A k8e server of the benchmark's own: its data directory, its port, and nothing left of it afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from k8e.client import SandboxClient
from k8e.client.discovery import Target, discover

__all__ = ["Deployment", "ServerUnderTest"]

_PATIENCE_S = 120.0
_PAUSE_S = 0.01


class ServerUnderTest:
    """A running server and clients of it."""

    def __init__(
        self, process: subprocess.Popen[bytes], data_dir: Path, client: SandboxClient, by_grpc: SandboxClient
    ) -> None:
        self.client = client
        """As the SDK finds its way by itself."""
        self.by_grpc = by_grpc
        self.pid = process.pid
        self._data_dir = data_dir

    def target(self) -> Target:
        return discover(environ={"K8E_DATA_DIR": str(self._data_dir)})

    def sandbox_ids(self) -> list[str]:
        return sorted(path.name for path in (self._data_dir / "sandboxes").iterdir())

    def settle(self, *, ready: int = 0) -> None:
        """Wait until the pool has what it wants, at least `ready`, and boots nothing: the next call meets a quiet host."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_settled(ready):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pool did not fill: {self.client.server_status().pool}")
            time.sleep(_PAUSE_S)

    def rss_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def _is_settled(self, ready: int) -> bool:
        shelves = self.client.server_status().pool
        enough = sum(int(str(shelf["ready"])) for shelf in shelves) >= ready
        return enough and not any(int(str(shelf["building"])) for shelf in shelves)


class Deployment:
    """One data directory, served with other flags for each group of measures; `remove` leaves nothing."""

    def __init__(self, tools_dir: Path) -> None:
        self._tools_dir = tools_dir
        self.data_dir = Path(tempfile.mkdtemp(prefix="k8e-bench-", dir="/tmp"))
        # Sandboxes run as nobody in particular: the path must be passable, though not listable, for others.
        self.data_dir.chmod(0o711)

    @contextlib.contextmanager
    def serving(self, *flags: str) -> Iterator[ServerUnderTest]:
        """A server for the length of a block; everything that it made is destroyed at the end."""
        process = self._start(flags)
        try:
            target = self._target()
            with (
                SandboxClient(target=target) as client,
                SandboxClient(target=dataclasses.replace(target, socket="")) as by_grpc,
            ):
                yield ServerUnderTest(process, self.data_dir, client, by_grpc)
        finally:
            self._destroy(process)

    def remove(self) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def _start(self, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "k8e", "server", "--data-dir", str(self.data_dir), "--listen", "127.0.0.1:0"]
        with (self.data_dir / "log").open("ab") as log:
            process = subprocess.Popen(
                [*argv, "--tools-dir", str(self._tools_dir), "--log-level", "warning", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # An interrupt at the keyboard is for the benchmark, which then takes the server down in order.
                start_new_session=True,
            )
        try:
            self._wait_ready(process)
        except BaseException:
            self._destroy(process)
            raise
        return process

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_ready(process):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.data_dir / "log").read_text()[-3000:])
            time.sleep(_PAUSE_S)

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads((self.data_dir / "server" / "server.json").read_text())
            return bool(known["pid"] == process.pid)
        return False

    def _destroy(self, process: subprocess.Popen[bytes]) -> None:
        # Only the engine knows everything that is left: a server that died is started again to clear up.
        argv = [sys.executable, "-m", "k8e", "server", "stop", "--destroy", "--data-dir", str(self.data_dir)]
        if process.poll() is None and not self._is_ready(process):
            process.terminate()
        else:
            subprocess.run(argv, env=self._environ(), stdout=subprocess.DEVNULL, timeout=_PATIENCE_S * 5, check=True)
        process.wait(_PATIENCE_S)

    def _environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("K8E_")}
        return {**kept, "K8E_SANDBOX_TOOLS_DIR": str(self._tools_dir)}

    def _target(self) -> Target:
        return discover(environ={"K8E_DATA_DIR": str(self.data_dir)})
