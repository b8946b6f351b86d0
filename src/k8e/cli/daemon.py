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
from typing import TYPE_CHECKING

from k8e.cli.running import is_running, ready_pid
from k8e.client.errors import DeadlineExceeded, ServerFailed, Unreachable
from k8e.client.light.places import SYSTEM_DATA_DIR, has_died, last_settings
from k8e.errors import Conflict, K8eError
from k8e.locks import private
from k8e.settings import AUTOSTARTED, OPTIONS, ServerSettings, load

if TYPE_CHECKING:
    from k8e.setup.early import Space
    from k8e.setup.report import Reporter

__all__ = ["check", "client_only", "start", "wait_ready", "wait_stopped"]

USUAL_S = 5.0
READY_S = 180.0
STEP_S = 0.02
LOG_LINES = 20
SUPERVISOR_S = 3.0
"""What a supervisor may take to start its server again after its death; then we do it."""


def start(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str] | None = None) -> None:
    """Set up what is missing, start a server of its own life, wait until it is ready.

    Without settings it gets those of the last server there: a tools directory that it had need not be built again.
    """
    if trouble := client_only():
        raise Unreachable(f"no server runs here, and {trouble}; name one with K8E_SANDBOX_ENDPOINT or --endpoint")
    from k8e.setup.report import Stderr, title

    report = Stderr()
    if settings is None:
        settings = inherited(data_dir, environ)
        if is_anothers(data_dir) and came_back(data_dir, report):
            return
    server = title("server") if prepare(data_dir, environ, settings, report) else "server"
    if settings:
        report.say(f"{server}: starting with the settings that it had ({', '.join(settings)})")
    directory = data_dir / "server"
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory / "start.lock"):
        process = None if is_running(data_dir) else spawn(data_dir, environ, settings)
        wait_ready(data_dir, process, report, server)


def inherited(data_dir: Path, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The settings of the last server there: all of one that died; what the environment says now is newer than a stop."""
    last = last_settings(data_dir)
    if last is None:
        return {}
    known = {option.name for option in OPTIONS}
    is_new = {name for name in known if environ.get(f"K8E_SANDBOX_{name.upper()}")} if not has_died(data_dir) else set()
    return {name: text for name, text in last.settings.items() if name in known - is_new}


def is_anothers(data_dir: Path) -> bool:
    """Whether the server there has died and somebody else may start it again, as systemd does."""
    last = last_settings(data_dir)
    return last is not None and not last.is_autostarted and has_died(data_dir)


def came_back(data_dir: Path, report: Reporter) -> bool:
    """Whether whoever started it has started it again, and it is ready."""
    report.say("the server has died; waiting for whoever started it")
    end = time.monotonic() + SUPERVISOR_S
    while not is_running(data_dir):
        if time.monotonic() > end:
            return False
        time.sleep(STEP_S)
    wait_ready(data_dir, None, report)
    return True


def client_only() -> str:
    """Why no server can be started from this installation; empty where one can."""
    if sys.platform != "linux":
        return "one can be started only on Linux"
    if importlib.util.find_spec("cryptography") is None:
        return "only the client is installed (in k8e's checkout, pip install '.[server]' adds the rest)"
    return ""


def check(settings: ServerSettings, environ: Mapping[str, str], *, also: Sequence[Space] = ()) -> None:
    """Find what would stop a start, or whoever writes `also` before it. Raises: ServerFailed."""
    from k8e.setup import provision
    from k8e.setup.report import Stderr

    with told(settings.data_dir, Stderr()):
        try:
            place = tools_home(settings, environ)
            provision.check(place, addresses=settings.addresses(), env=environ, also=also)
        except Conflict:
            if not is_running(settings.data_dir):  # another command may just have started what listens there
                raise


def prepare(data_dir: Path, environ: Mapping[str, str], given: Mapping[str, str], report: Reporter) -> bool:
    """Do the set-up here, where its progress is seen; whether there was anything to do. Raises: ServerFailed."""
    from k8e.setup.provision import ensure

    with told(data_dir, report):
        settings = load(data_dir, flags=given, environ=environ)
    check(settings, environ)
    with told(data_dir, report):
        place = tools_home(settings, environ)
        made = ensure(
            place,
            report,
            env=environ,
            gvisor_timeout_s=settings.gvisor_timeout,
            gvisor_release=settings.gvisor_release,
        )
        return made.has_worked


def tools_home(settings: ServerSettings, environ: Mapping[str, str]) -> Path:
    """Whose set-up the server uses; others than root learn what is missing where root would look."""
    if settings.tools_dir:
        return Path(settings.tools_dir)
    is_roots = os.geteuid() != 0 and not environ.get("K8E_DATA_DIR")
    return SYSTEM_DATA_DIR if is_roots else settings.data_dir


@contextmanager
def told(data_dir: Path, report: Reporter) -> Iterator[None]:
    """What goes wrong with the host, for people and as an error of the SDK."""
    try:
        yield
    except K8eError as error:
        report.say(str(error))
        raise ServerFailed(str(error)) from error
    except OSError as error:
        raise ServerFailed(f"cannot prepare {data_dir}: {error}") from error
    except KeyboardInterrupt:
        report.say("interrupted; run the same command again to go on")
        raise


def spawn(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A server in a session of its own, holding none of our files; its settings are not for everybody to read."""
    given = {f"K8E_SANDBOX_{name.upper()}": text for name, text in settings.items()}
    with (data_dir / "server" / "server.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "k8e", "server", "--data-dir", str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**environ, **given, AUTOSTARTED: "1"},
            start_new_session=True,
        )


def wait_ready(
    data_dir: Path, process: subprocess.Popen[bytes] | None, report: Reporter | None = None, name: str = "server"
) -> None:
    """Until it is ready: the one that we have started, or whichever one there is."""
    from k8e.setup.report import Activity, Stderr

    report = report or Stderr()
    begun = time.monotonic()
    log = data_dir / "server" / "server.log"
    doing = Activity(title=name, doing="starting", since=begun, usual_s=USUAL_S)
    while not (
        is_running(data_dir) and ready_pid(data_dir) and (process is None or ready_pid(data_dir) == process.pid)
    ):
        if process is None and not is_running(data_dir):
            report.clear()
            raise Unreachable(f"the server has ended; see {log}")
        if (process is not None and process.poll() is not None) or time.monotonic() - begun > READY_S:
            report.clear()
            raise ServerFailed(f"the server did not start; the end of its log ({log}):\n{log_tail(data_dir)}")
        report.show(doing)
        time.sleep(STEP_S)
    report.clear()
    if process is not None:
        report.say(f"{name}: ready after {time.monotonic() - begun:.1f} s (log: {log})")
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
