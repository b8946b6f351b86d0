"""`install.sh` as users run it, on the real kernel: installed, upgraded under live sessions, and gone without a trace."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import TypeVar

import pytest

from k8e.client import Chunk, Exit, SandboxClient
from k8e.identity.announcing import MARK
from k8e.model import Runtime
from k8e.setup.provision import Provisioned
from tests.install.conftest import ROOT, Dist
from tests.install.machine import INSTALLER, NAMES, PATIENCE_S, PAUSE_S, Machine
from tests.support.leaks import Ledger
from tests.support.traces import Trace, nft_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

T = TypeVar("T")

_NOBODY = 65534

# Writes down how it was called; where it is needed, systemd itself cannot be had.
_SYSTEMCTL = '#!/bin/sh\necho "$*" >>"$CALLS"\n'


@pytest.fixture
def machine(data_dir: Path, host: Provisioned) -> Machine:
    return Machine(data_dir)


def _works(machine: Machine) -> None:
    for name in NAMES:
        ended = machine.run(name, "--version")
        assert (ended.returncode, ended.stdout.split()[0]) == (0, name), ended.stderr


def _files(*roots: Path) -> set[str]:
    """Others work on this machine, too: what goes away while it is looked at is not there."""
    walked = (each for root in roots for each in os.walk(root))
    return {f"{top}/{name}" for top, directories, files in walked for name in (*directories, *files)}


# --- where it comes from ----------------------------------------------------------------------------------------------


def test_piped_to_a_shell_it_installs_the_one_file_program_under_three_names(machine: Machine, dist: Dist) -> None:
    ended = machine.install(dist.program)
    assert ended.returncode == 0, ended.stderr
    _works(machine)
    assert f"start the server with `{machine.bin}/k8e server" in ended.stderr


def test_from_a_checkout_it_needs_no_source(machine: Machine) -> None:
    ended = subprocess.run([str(INSTALLER)], env=machine.environ, cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    _works(machine)
    # A copy: the checkout may change or go.
    [python] = (machine.lib / "k8e").glob("*/bin/python")
    place = subprocess.run(
        [python, "-I", "-c", "import k8e; print(k8e.__file__)"], capture_output=True, text=True, check=True
    )
    assert place.stdout.startswith(str(machine.lib))


@contextlib.contextmanager
def _published(directory: Path) -> Iterator[str]:
    """The directory over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_from_an_address_it_is_fetched_and_its_digest_checked(machine: Machine, dist: Dist) -> None:
    right = hashlib.sha256(dist.program.read_bytes()).hexdigest()
    with _published(dist.program.parent) as address:
        refused = machine.install(f"{address}/k8e", K8E_INSTALL_SHA256="0" * 64)
        assert refused.returncode == 1
        assert "nothing was changed" in refused.stderr
        assert not (machine.bin / "k8e").exists()
        assert machine.install(f"{address}/nothing").returncode == 1
        ended = machine.install(f"{address}/k8e", K8E_INSTALL_SHA256=right)
    assert ended.returncode == 0, ended.stderr
    _works(machine)
    assert not (machine.lib / "k8e" / "download").exists()


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"INSTALL_K8E_EXEC": "agent --server x"}, "comes with clusters"),
        ({"INSTALL_K8E_EXEC": "rm -rf"}, "does not begin with server"),
        ({"INSTALL_K8E_EXEC": "server --x y\nExecStartPre=x"}, "more than one line"),
        ({"INSTALL_K8E_EXEC": "server --data-dir /x"}, "INSTALL_K8E_DATA_DIR"),
        ({"INSTALL_K8E_DATA_DIR": "here"}, "not an absolute path"),
        ({"INSTALL_K8E_DATA_DIR": "/x/$(id)"}, "not a plain path"),
        ({"INSTALL_K8E_DATA_DIR": "/"}, "not a plain path"),
        ({"K8E_INSTALL_SOURCE": ""}, "set K8E_INSTALL_SOURCE"),
        ({"K8E_INSTALL_SOURCE": "/nonexistent"}, "does not exist"),
        ({"K8E_INSTALL_SOURCE": "/bin/sh"}, "neither"),
    ],
)
def test_what_cannot_be_is_refused_in_words_and_changes_nothing(
    machine: Machine, dist: Dist, extra: dict[str, str], text: str
) -> None:
    ended = machine.install(dist.program, **extra)
    assert ended.returncode == 1
    assert text in ended.stderr
    assert not list(machine.bin.iterdir())


def test_a_read_only_place_is_named(machine: Machine, dist: Dist) -> None:
    place = machine.root / "frozen"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "k8e-test", str(place)], check=True)
    try:
        ended = machine.install(dist.program, INSTALL_K8E_BIN_DIR=str(place / "bin"))
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert ended.returncode == 1
    assert f"cannot write {place}/bin" in ended.stderr
    assert machine.install(dist.program).returncode == 0


def test_without_root_it_goes_to_the_home_and_says_what_that_means(machine: Machine, dist: Dist) -> None:
    program = Path(shutil.copy2(dist.program, machine.home))
    os.chown(machine.home, _NOBODY, _NOBODY)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(machine.home), "K8E_INSTALL_SOURCE": str(program)}

    def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            input=stdin,
            env=env,
            cwd="/",
            user=_NOBODY,
            group=_NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )

    ended = run("sh", stdin=INSTALLER.read_text())
    assert ended.returncode == 0, ended.stderr
    assert "a server of your own needs root" in ended.stderr
    assert "not on your PATH" in ended.stderr
    command = machine.home / ".local" / "bin" / "k8e"
    assert run(str(command), "--version").stdout.startswith("k8e ")
    # Root's server on the same machine has told everybody whom to trust; that is root's to take back. In a mount
    # namespace of its own, because the real directory is the machine's.
    script = """
        mount -t tmpfs t /etc && mkdir /etc/k8e && echo "$2" >/etc/k8e/k8e.yaml
        setpriv --reuid "$3" --regid "$3" --clear-groups "$1" && ls /etc/k8e
    """
    uninstall = str(command.with_name("k8e-uninstall.sh"))
    argv = ["unshare", "-m", "sh", "-c", script, "sh", uninstall, MARK, str(_NOBODY)]
    gone = subprocess.run(argv, env=env | {"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout) == (0, "k8e.yaml\n"), gone.stderr
    assert {path.name for path in machine.home.rglob("*")} == {"k8e", ".local", "bin", "lib"}


# --- again and again --------------------------------------------------------------------------------------------------


def test_the_same_again_changes_nothing_and_keeps_what_it_was_told(machine: Machine, dist: Dist) -> None:
    machine.install(dist.program)
    before, unit = _files(machine.root), machine.unit()["Service"]["ExecStart"]
    again = {"INSTALL_K8E_EXEC": "", "INSTALL_K8E_DATA_DIR": ""}
    assert machine.install(dist.program, **again).returncode == 0
    assert _files(machine.root) == before
    assert machine.unit()["Service"]["ExecStart"] == unit


def test_a_killed_installation_is_simply_run_again(machine: Machine, dist: Dist) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _is_killed_half_way(machine, dist):
        assert time.monotonic() < deadline, "it always ends before it can be killed"
    assert not (machine.bin / "k8e").exists()
    assert machine.install(dist.program).returncode == 0
    _works(machine)
    assert len(machine.versions()) == 1


def _is_killed_half_way(machine: Machine, dist: Dist) -> bool:
    """Begin from nothing but what others left, and kill it while it unpacks; False when it was quicker than we were."""
    shutil.rmtree(machine.lib / "k8e", ignore_errors=True)
    for path in machine.bin.iterdir():
        path.unlink()
    (machine.lib / "k8e" / "pip-1" / "bin").mkdir(parents=True)
    (machine.lib / "k8e" / "download").mkdir()
    env = machine.environ | {"K8E_INSTALL_SOURCE": str(dist.program)}
    # Slower than whoever is to kill it in the middle.
    argv = ["nice", "-n", "19", "sh", str(INSTALLER)]
    killed = subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    unpacked = machine.lib / "k8e" / "new" / "lib"
    deadline = time.monotonic() + PATIENCE_S
    while killed.poll() is None and not unpacked.exists():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S / 10)
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    return unpacked.exists()


def test_an_old_version_goes_when_nobody_uses_it(machine: Machine, dist: Dist) -> None:
    machine.install(dist.program)
    [first] = machine.versions()
    old = machine.lib / "k8e" / "old"
    shutil.copytree(machine.lib / "k8e" / first, old, symlinks=True)
    user = subprocess.Popen([old / "bin" / "python", "-I", "-c", "import time; time.sleep(1000)"])
    machine.install(dist.program)
    assert machine.versions() == {first, "old"}
    user.kill()
    user.wait()
    machine.install(dist.program)
    assert machine.versions() == {first}


# --- the service ------------------------------------------------------------------------------------------------------


def test_the_unit_ties_no_sandbox_to_the_server(machine: Machine, dist: Dist) -> None:
    machine.install(dist.program, INSTALL_K8E_EXEC="server --default-hosts 100%.example,$HOME.example")
    unit = machine.unit()
    service = unit["Service"]
    assert service["KillMode"] == "process"
    assert service["Restart"] == "on-failure"
    private = ("Private", "Protect", "MountFlags", "ReadOnly", "ReadWrite", "Inaccessible", "Bind", "Temporary", "Root")
    assert not [key for key in service if key.startswith((*private, "DynamicUser", "Slice", "Memory", "CPU"))]
    assert "100%%.example,$$HOME.example" in service["ExecStart"]
    if verifier := shutil.which("systemd-analyze"):
        argv = [verifier, "verify", "--man=no", str(machine.units / "k8e.service")]
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_where_systemd_runs_it_is_told(machine: Machine, dist: Dist) -> None:
    systemctl = machine.root / "tools" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(_SYSTEMCTL)
    systemctl.chmod(0o755)
    calls = machine.root / "calls"
    env = machine.environ | {"CALLS": str(calls), "K8E_INSTALL_SOURCE": str(dist.program)}
    env["PATH"] = f"{systemctl.parent}:{env['PATH']}"

    def with_systemd(script: Path, **extra: str) -> list[str]:
        """Calls of a script in a mount namespace where it looks as if systemd ran."""
        calls.write_text("")
        line = 'mount -t tmpfs t /run && mkdir -p /run/systemd/system && exec sh "$1"'
        subprocess.run(["unshare", "-m", "sh", "-c", line, "sh", str(script)], env=env | extra, check=True)
        return calls.read_text().splitlines()

    told = ["daemon-reload", "enable k8e.service"]
    assert with_systemd(INSTALLER, INSTALL_K8E_SKIP_START="1") == told
    assert with_systemd(INSTALLER) == [*told, "restart k8e.service"]
    uninstall = machine.bin / "k8e-uninstall.sh"
    assert with_systemd(uninstall) == ["disable --now k8e.service", "daemon-reload"]
    assert not list(machine.units.iterdir())


@pytest.mark.parametrize(
    ("first_line", "written", "left"),
    [(MARK, "k8e.yaml", "none"), ("apiVersion: v1", "k8e.yaml", "k8e.yaml"), (MARK, "target", "k8e.yaml target")],
    ids=["ours", "other", "link"],
)
def test_the_machines_own_announcement_goes_and_somebody_elses_stays(
    machine: Machine, dist: Dist, first_line: str, written: str, left: str
) -> None:
    machine.install(dist.program, INSTALL_K8E_DATA_DIR="/var/lib/k8e")
    # In a mount namespace of its own: the real directories are the machine's.
    script = """
        mount -t tmpfs t /var/lib && mount -t tmpfs t /etc && mkdir /etc/k8e && echo "$2" >/etc/k8e/"$3"
        [ -e /etc/k8e/k8e.yaml ] || ln -s "$3" /etc/k8e/k8e.yaml
        sh "$1" && { ls /etc/k8e 2>/dev/null || echo none; }
    """
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(machine.bin / "k8e-uninstall.sh"), first_line, written]
    ended = subprocess.run(argv, env=machine.environ, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == left.split(), ended.stderr


# --- with a server ----------------------------------------------------------------------------------------------------


def _background_run(client: SandboxClient, runtime: Runtime) -> tuple[str, str]:
    sid = client.create_session(runtime_class=runtime)
    return sid, client.start_run(sid, "seq 9999; until [ -e /workspace/go ]; do sleep 0.1; done; echo tail; exit 7")


def _result(client: SandboxClient, run_id: str) -> tuple[bytes, int]:
    items = list(client.attach_run(run_id))
    [code] = [item.exit_code for item in items if isinstance(item, Exit)]
    return b"".join(item.data for item in items if isinstance(item, Chunk)), code


def test_sessions_live_through_an_upgrade(machine: Machine, dist: Dist) -> None:
    machine.install(dist.program)
    machine.start()
    with machine.client() as client:
        runs = [_background_run(client, runtime) for runtime in (Runtime.CONTAINER, Runtime.GVISOR)]
    [old] = machine.versions()
    ended = machine.install(dist.wheel)
    assert ended.returncode == 0, ended.stderr
    assert "its sessions live on" in ended.stderr
    machine.wait()
    # The network's daemon was started from the old version and still serves those sessions.
    assert old in machine.versions()
    assert len(machine.versions()) == 2
    machine.start()
    with machine.client() as client:
        for sid, run_id in runs:
            client.write_file(sid, "/workspace/go", "")
            output = b"".join(b"%d\n" % number for number in range(1, 10_000)) + b"tail\n"
            assert _result(client, run_id) == (output, 7)
    assert machine.run("k8e-uninstall.sh").returncode == 0
    machine.wait()


@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
def test_uninstalling_leaves_nothing(machine: Machine, dist: Dist, ledger: Ledger, is_killed: bool) -> None:
    watched = (machine.root, Path("/etc"), Path("/usr/local/bin"), Path("/var/cache"))

    def traces() -> frozenset[Trace]:
        return ledger.now() | nft_tables()

    files, before = _files(*watched) | {str(machine.root / "log")}, traces()
    machine.install(dist.program)
    machine.start()
    with machine.client() as client:
        sids = [client.create_session(runtime_class=runtime) for runtime in (Runtime.CONTAINER, Runtime.GVISOR)]
        assert [client.exec(sid, "echo here").stdout for sid in sids] == ["here\n"] * 2
    kinds = {trace.kind for trace in traces() - before}
    assert {"cgroup", "loop device", "mount", "process", "unix socket"} <= kinds, (
        "the control: there is something to remove"
    )
    if is_killed:
        machine.kill()
    ended = machine.run("k8e-uninstall.sh")
    assert ended.returncode == 0, ended.stderr
    if not is_killed:
        assert machine.wait() == 0
    assert not _settled(lambda: _files(*watched) - files)
    assert not _settled(lambda: files - _files(*watched))
    assert not _settled(lambda: traces() - before)


def _settled(look: Callable[[], Set[T]]) -> Set[T]:
    """What is left when it had its time to go."""
    deadline = time.monotonic() + PATIENCE_S
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return left


def test_the_first_result_comes_from_nothing_but_the_script(machine: Machine, dist: Dist) -> None:
    begun = time.monotonic()
    machine.install(dist.program)
    # The PATH of a plain user, which leads to no administrator's tools.
    ended = machine.run("k8e", "sandbox", "run", "print(6 * 7)", "--lang", "python", PATH="/usr/bin:/bin")
    seconds = time.monotonic() - begun
    assert '"stdout":"42\\n"' in ended.stdout, ended.stdout + ended.stderr
    print(f"\nfrom nothing to the first result: {seconds:.1f} s")
    assert machine.run("k8e-uninstall.sh").returncode == 0


def test_the_documents_name_every_setting() -> None:
    head = INSTALLER.read_text().partition("set -eu")[0]
    used = {
        word for word in INSTALLER.read_text().replace("$", " ").replace("{", " ").split() if "INSTALL_K8E_" in word
    }
    names = {word.partition(":")[0].partition("=")[0].strip('"') for word in used if word.startswith("INSTALL_K8E_")}
    assert {name for name in names if name.isidentifier() and name not in head} == set()
    assert (ROOT / "install.sh").stat().st_mode & 0o111
