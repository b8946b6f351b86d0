"""A machine to install on: a prefix, a data directory and a home of their own, and the real script."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from k8e.client import SandboxClient
from k8e.client.discovery import discover
from tests.support.places import TOOLS_DIR
from tests.support.prepared_images import use_prepared_images

__all__ = ["INSTALLER", "NAMES", "Machine"]

ROOT = Path(__file__).resolve().parents[2]
INSTALLER = ROOT / "install.sh"
NAMES = ("k8e", "k8e-sandbox", "k8e-sandbox-cli")
PATIENCE_S = 60.0
PAUSE_S = 0.02

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SERVER = f"server --tools-dir {TOOLS_DIR} --listen 127.0.0.1:0 --pool-min 1 --pool-max 2"


class Machine:
    """Everything that an installation may touch lies below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin, self.lib, self.units = root / "usr" / "bin", root / "usr" / "lib", root / "units"
        self.data, self.home = root / "data", root / "home"
        for directory in (self.bin, self.lib, self.units, self.home):
            directory.mkdir(parents=True)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What the script is told. Where a server is started without the unit's words, it shares the set-up, too."""
        return {
            "PATH": f"{self.bin}:{_PATH}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "K8E_PYTHON": sys.executable,
            "INSTALL_K8E_BIN_DIR": str(self.bin),
            "INSTALL_K8E_DATA_DIR": str(self.data),
            "INSTALL_K8E_SYSTEMD_DIR": str(self.units),
            "INSTALL_K8E_EXEC": _SERVER,
            "K8E_SANDBOX_TOOLS_DIR": str(TOOLS_DIR),
            "K8E_SANDBOX_LISTEN": "127.0.0.1:0",
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))},
        }

    def install(self, source: Path | str, **extra: str) -> subprocess.CompletedProcess[str]:
        """As `curl … | sh` does it."""
        env = self.environ | {"K8E_INSTALL_SOURCE": str(source)} | extra
        return subprocess.run(
            ["sh"], input=INSTALLER.read_text(), env=env, cwd="/", capture_output=True, text=True, check=False
        )

    def run(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """One of the installed commands."""
        argv = [str(self.bin / words[0]), *words[1:]]
        return subprocess.run(argv, env=self.environ | extra, capture_output=True, text=True, check=False)

    def unit(self) -> configparser.RawConfigParser:
        parser = configparser.RawConfigParser(strict=True)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are case-sensitive in units
        parser.read(self.units / "k8e.service")
        return parser

    def start(self) -> None:
        """What systemd would do: the unit's own line."""
        use_prepared_images(self.data)
        argv = shlex.split(self.unit()["Service"]["ExecStart"])
        with (self.root / "log").open("ab") as log:
            self._server = subprocess.Popen(argv, env={"PATH": _PATH}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.root / "log").read_text()[-3000:])
            time.sleep(PAUSE_S)

    def kill(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Until the server has ended, whoever ended it."""
        assert self._server is not None
        code = self._server.wait(PATIENCE_S)
        self._server = None
        return code

    def client(self) -> SandboxClient:
        return SandboxClient(target=discover(environ={"K8E_DATA_DIR": str(self.data)}))

    def versions(self) -> set[str]:
        return {path.name for path in (self.lib / "k8e").iterdir() if path.is_dir()}

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads((self.data / "server" / "server.json").read_text())
            return self._server is not None and known["pid"] == self._server.pid
        return False
