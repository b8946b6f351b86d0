"""The client is for every platform: it imports, and its pure parts work, where Linux' own modules are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
import os, signal, socket, sys
for name in ("fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "posix_spawn"):
    sys.modules[name] = None
for module, names in (
    (os, ("geteuid", "getuid", "fork", "register_at_fork", "chown", "mkfifo")),
    (socket, ("AF_UNIX", "SO_PEERCRED", "send_fds", "recv_fds")),
    (signal, ("SIGWINCH", "SIGHUP", "SIGKILL")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""

EVERY_MODULE = """
import importlib, pkgutil
import k8e.client, sandbox_client
names = [each.name for each in pkgutil.walk_packages(k8e.client.__path__, "k8e.client.")]
for name in names:
    importlib.import_module(name)
for name in k8e.client.__all__:
    getattr(k8e.client, name)
print(len(names))
"""


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_every_module_of_the_client_imports_without_linux() -> None:
    done = ran(HIDDEN + EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 25


def test_hiding_really_hides() -> None:
    """The control: a module of the server's does not import here."""
    done = ran(HIDDEN + "import k8e.identity.pki")
    assert "fcntl" in done.stderr


def test_a_server_is_looked_for_without_linux(tmp_path: Path) -> None:
    program = (
        "from k8e.client.discovery import discover\n"
        f"print(discover(None, {{'K8E_SANDBOX_CERT_DIR': {str(tmp_path)!r}, 'XDG_DATA_HOME': {str(tmp_path)!r}}}).endpoint)"
    )
    done = ran(HIDDEN + program)
    assert (done.stdout, done.returncode) == ("127.0.0.1:50051\n", 0), done.stderr


def test_a_client_is_made_and_closed_without_linux() -> None:
    program = (
        "from k8e.client import SandboxClient, Unreachable\n"
        "with SandboxClient('127.0.0.1:1') as client:\n"
        "    try:\n        client.sessions()\n    except Unreachable as error:\n        print(error.was_sent)\n"
    )
    # The event loop of Linux needs this one itself.
    done = ran(HIDDEN.replace('"AF_UNIX", ', "") + program)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


@pytest.mark.parametrize("module", ["errors", "values", "discovery", "landing", "retries", "light.profiles"])
def test_the_pure_parts_load_without_the_transport(module: str) -> None:
    done = ran(f"import sys, k8e.client.{module}; print('grpc' in sys.modules, 'asyncio' in sys.modules)")
    assert done.stdout == "False False\n"
