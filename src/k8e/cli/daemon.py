"""The server that commands start by themselves when none runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from k8e.cli.output import say
from k8e.cli.running import is_running, ready_pid
from k8e.client.errors import DeadlineExceeded, ServerFailed, Unreachable
from k8e.client.light.places import SYSTEM_DATA_DIR, has_died, last_settings
from k8e.locks import private
from k8e.settings import AUTOSTARTED

__all__ = ["client_only", "start", "wait_ready", "wait_stopped"]

READY_S = 180.0
STEP_S = 0.02
NEWS_S = 5.0
LOG_LINES = 20
SUPERVISOR_S = 3.0
"""What a supervisor may take to start its server again after its death; then we do it."""


def start(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str] | None = None) -> None:
    """Set up what is missing, start a server of its own life, wait until it is ready.

    Without settings it gets those of the last server there: a tools directory that it had need not be built again.
    """
    if trouble := client_only():
        raise Unreachable(f"no server runs here, and {trouble}; name one with K8E_SANDBOX_ENDPOINT or --endpoint")
    if settings is None:
        settings = inherited(data_dir, environ)
        if is_anothers(data_dir) and came_back(data_dir):
            return
    prepare(data_dir, environ, settings)
    directory = data_dir / "server"
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory / "start.lock"):
        if not is_running(data_dir):
            flags = [f"--{name.replace('_', '-')}={text}" for name, text in settings.items()]
            how = f" with {' '.join(flags)}" if flags else ""
            say(f"starting the server{how} (log: {directory / 'server.log'})")
            wait_ready(data_dir, spawn(data_dir, environ, flags))
        else:
            wait_ready(data_dir, None)


def inherited(data_dir: Path, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of the last server there: all of one that died; what the environment says now is newer than a stop."""
    last = last_settings(data_dir)
    if last is None:
        return {}
    if has_died(data_dir):
        return last.settings
    return {name: text for name, text in last.settings.items() if not environ.get(f"K8E_SANDBOX_{name.upper()}")}


def is_anothers(data_dir: Path) -> bool:
    """Whether the server there has died and somebody else may start it again, as systemd does."""
    last = last_settings(data_dir)
    return last is not None and not last.is_autostarted and has_died(data_dir)


def came_back(data_dir: Path) -> bool:
    """Whether whoever started it has started it again, and it is ready."""
    say("the server has died; waiting for whoever started it")
    end = time.monotonic() + SUPERVISOR_S
    while not is_running(data_dir):
        if time.monotonic() > end:
            return False
        time.sleep(STEP_S)
    wait_ready(data_dir, None)
    return True


def client_only() -> str:
    """Why no server can be started from this installation; empty where one can."""
    if sys.platform != "linux":
        return "one can be started only on Linux"
    if importlib.util.find_spec("cryptography") is None:
        return "only the client is installed (pip install 'k8e[server]' adds the rest)"
    return ""


def prepare(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Do the set-up here, where its progress is seen; later starts find nothing to do."""
    from k8e.errors import K8eError
    from k8e.setup.provision import ensure
    from k8e.setup.report import Stderr

    # Others than root learn what is missing where root would look.
    is_roots = os.geteuid() != 0 and not environ.get("K8E_DATA_DIR")
    place = SYSTEM_DATA_DIR if is_roots else data_dir
    try:
        tools_dir = settings.get("tools_dir") or environ.get("K8E_SANDBOX_TOOLS_DIR") or place
        ensure(Path(tools_dir), Stderr(), env=environ)
    except K8eError as error:
        say(str(error))
        raise ServerFailed(str(error)) from error
    except OSError as error:
        raise ServerFailed(f"cannot prepare {data_dir}: {error}") from error


def spawn(data_dir: Path, environ: Mapping[str, str], flags: Sequence[str]) -> subprocess.Popen[bytes]:
    """A server in a session of its own, holding none of our files."""
    with (data_dir / "server" / "server.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "k8e", "server", "--data-dir", str(data_dir), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**environ, AUTOSTARTED: "1"},
            start_new_session=True,
        )


def wait_ready(data_dir: Path, process: subprocess.Popen[bytes] | None) -> None:
    begun = time.monotonic()
    said = begun
    while not (
        is_running(data_dir) and ready_pid(data_dir) and (process is None or ready_pid(data_dir) == process.pid)
    ):
        now = time.monotonic()
        if (process is not None and process.poll() is not None) or now - begun > READY_S:
            raise ServerFailed(f"the server did not start; the end of its log:\n{log_tail(data_dir)}")
        if now - said > NEWS_S:
            said = now
            say(f"still starting … {now - begun:.0f} s")
        time.sleep(STEP_S)
    if process is not None:
        say(f"server ready after {time.monotonic() - begun:.1f} s")
        # It lives on without us; nobody waits for it here.
        process.returncode = 0


def wait_stopped(data_dir: Path, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while is_running(data_dir):
        if time.monotonic() > end:
            raise DeadlineExceeded(
                f"the server still runs after {timeout_s:.0f} s; see {data_dir / 'server' / 'server.log'}"
            )
        time.sleep(STEP_S)


def log_tail(data_dir: Path) -> str:
    try:
        with (data_dir / "server" / "server.log").open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 16384))
            text = log.read().decode("utf-8", "replace")
    except OSError as error:
        return str(error)
    return "\n".join(text.splitlines()[-LOG_LINES:])


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process starts the server; the others wait for its result."""
    import fcntl

    with private(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
