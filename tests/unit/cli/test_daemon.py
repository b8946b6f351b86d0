"""The server that commands start by themselves."""

from __future__ import annotations

import argparse
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from k8e.cli import daemon
from k8e.cli.reaching import reach
from k8e.cli.running import ensure_running, is_running, ready_pid
from k8e.client.errors import SandboxError, ServerFailed, Unreachable
from k8e.errors import Conflict
from k8e.server import locked, make_directories, published
from k8e.settings import load
from tests.support.skips import needs_root

Started = list["subprocess.Popen[bytes]"]
PATIENCE_S = 60.0


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where nothing needs to be installed."""
    monkeypatch.setattr(daemon, "prepare", lambda data_dir, environ, given, report: False)


@pytest.fixture
def started(prepared: None, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Servers of tests instead of real ones, with the processes that were started."""
    processes: Started = []

    def spawn(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.support.door", str(data_dir)]
        with (data_dir / "server" / "server.log").open("ab") as log:
            processes.append(subprocess.Popen(argv, stdout=log, cwd=Path(__file__).parent.parent.parent.parent))
        return processes[-1]

    monkeypatch.setattr(daemon, "spawn", spawn)
    return processes


def end(processes: Started) -> None:
    for process in processes:
        process.returncode = None  # `start` lets go of it; the test does not
        process.terminate()
        process.wait(PATIENCE_S)


def test_a_server_is_started_once_however_many_commands_need_it(tmp_path: Path, started: Started) -> None:
    environ = {"K8E_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)}
    threads = [threading.Thread(target=ensure_running, args=(environ,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    try:
        assert len(started) == 1
        assert (is_running(tmp_path), ready_pid(tmp_path)) == (True, started[0].pid)
        calls = reach(argparse.Namespace(), environ, starts_server=True)
        assert calls.unary("ServerStatus", {}).number("pid") == started[0].pid
        assert len(started) == 1
    finally:
        end(started)
    daemon.wait_stopped(tmp_path, PATIENCE_S)
    assert not is_running(tmp_path)


@pytest.mark.parametrize(
    "named", [{"flag": "127.0.0.1:1"}, {"environ": "127.0.0.1:1"}], ids=lambda named: next(iter(named))
)
def test_a_named_endpoint_is_never_started(tmp_path: Path, started: Started, named: dict[str, str]) -> None:
    environ = {"K8E_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)}
    if "environ" in named:
        environ["K8E_SANDBOX_ENDPOINT"] = named["environ"]
    calls = reach(argparse.Namespace(endpoint=named.get("flag")), environ, starts_server=True)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        calls.unary("ServerStatus", {})
    calls.close()
    assert started == []


def test_a_server_that_dies_at_start_is_an_error_with_the_end_of_its_log(
    tmp_path: Path, prepared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(data_dir: Path, environ: Mapping[str, str], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (data_dir / "server" / "server.log").open("ab") as log:
            return subprocess.Popen(["/bin/sh", "-c", "echo the reason; exit 2"], stdout=log)

    monkeypatch.setattr(daemon, "spawn", dying)
    with pytest.raises(ServerFailed, match="the reason"):
        daemon.start(tmp_path, {})


@needs_root("anybody else is told so first")
def test_an_address_that_another_program_has_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        with pytest.raises(ServerFailed, match=f"cannot listen on {host}:{port}"):
            daemon.start(tmp_path / "data", {"K8E_SANDBOX_LISTEN": f"{host}:{port}"})
    assert list(tmp_path.iterdir()) == []


@needs_root("anybody else is told so first")
def test_an_address_that_our_own_server_has_just_taken_is_no_trouble(tmp_path: Path) -> None:
    make_directories(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, locked(tmp_path):
        host, port = taken.getsockname()
        daemon.check(load(tmp_path, flags={"listen": f"{host}:{port}"}, environ={}), {})


@needs_root("anybody else is told so first")
def test_a_data_directory_that_cannot_be_used_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="file"):
        daemon.start(tmp_path / "file", {})


def test_a_second_server_on_the_same_directory_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom k8e.server import locked\n"
        "with locked(Path(sys.argv[1])):\n    print(flush=True)\n    sys.stdin.read()"
    )
    make_directories(tmp_path)
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(Conflict, match=str(first.pid)), locked(tmp_path):
            pass
        assert is_running(tmp_path)
        first.communicate()
    assert not is_running(tmp_path)
    with locked(tmp_path):  # the control: free again once its holder is gone
        pass


@pytest.mark.parametrize("words", [["sandbox", "run", "true"], ["server"], ["doctor"]], ids=" ".join)
def test_an_installation_without_the_servers_parts_says_so(tmp_path: Path, words: list[str]) -> None:
    code = f"import sys; sys.modules['cryptography'] = None; from k8e.cli.main import main; sys.exit(main({words!r}))"
    environ = {"K8E_DATA_DIR": str(tmp_path / "nowhere"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "nowhere").exists()) == (2, False)
    assert "pip install '.[server]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("has_died", [True, False], ids=["died", "stopped"])
def test_a_server_gets_the_settings_of_the_last_one_and_after_a_stop_the_newer_ones_of_the_environment(
    tmp_path: Path, has_died: bool
) -> None:
    settings = load(tmp_path, flags={"pool_min": "3", "tools_dir": "tools"}, environ={"K8E_SANDBOX_LOG_LEVEL": "debug"})
    make_directories(tmp_path)
    with published(settings, {"grpc": "grpcs://127.0.0.1:50051"}):
        left = (tmp_path / "server" / "server.json").read_bytes()
        assert stat.S_IMODE((tmp_path / "server" / "settings.json").stat().st_mode) == 0o600
    if has_died:
        (tmp_path / "server" / "server.json").write_bytes(left)
    now = {"K8E_SANDBOX_POOL_MIN": "4"}
    inherited = {"tools_dir": str(Path("tools").absolute()), "log_level": "debug"}
    assert daemon.inherited(tmp_path, now) == {**inherited, "pool_min": "3"} if has_died else inherited
    assert daemon.inherited(tmp_path / "elsewhere", now) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": 3, "is_autostarted": true}', '{"settings": {}}'])
def test_what_no_server_wrote_about_its_settings_counts_for_nothing(tmp_path: Path, text: str) -> None:
    make_directories(tmp_path)
    (tmp_path / "server" / "settings.json").write_text(text)
    assert daemon.inherited(tmp_path, {}) == {}


def test_whoever_started_a_server_that_died_has_a_moment_to_start_it_again(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directories(tmp_path)
    with published(load(tmp_path, flags={}, environ={}), {"grpc": "grpcs://127.0.0.1:50051"}):
        left = (tmp_path / "server" / "server.json").read_bytes()
    (tmp_path / "server" / "server.json").write_bytes(left)
    came: list[Path] = []

    def came_back(data_dir: Path, report: object) -> bool:
        came.append(data_dir)
        return True

    monkeypatch.setattr(daemon, "came_back", came_back)
    daemon.start(tmp_path, {})
    assert (came, started) == ([tmp_path], [])
    # One that a client started is started by the next one at once.
    monkeypatch.setenv("K8E_SANDBOX_AUTOSTARTED", "1")
    with published(load(tmp_path, flags={}, environ={}), {"grpc": "grpcs://127.0.0.1:50051"}):
        pass
    (tmp_path / "server" / "server.json").write_bytes(left)
    try:
        daemon.start(tmp_path, {})
        assert (came, len(started)) == ([tmp_path], 1)
    finally:
        end(started)
