"""The launcher `./k8e`, in a small checkout with a stand-in for Python that writes down how it was called."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.skips import needs_root

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "k8e"

# Answers like an environment's Python: pip succeeds unless a file says otherwise, a program echoes its arguments. What
# makes the environment is run by a real one, without a single package.
PYTHON = f"""#!/bin/sh
case "$*" in *"from k8e.cli.first_start"*) exec {sys.executable} -S "$@" ;; esac
echo "$*" >>"$CALLS"
case "$*" in
    *"-m venv"*) shift 3; mkdir -p "$1/bin"; cp "$0" "$1/bin/python" ;;
    *"pip install"*)
        echo "Collecting something (from k8e)"
        until [ ! -e "$CALLS.slow" ]; do sleep 0.02; done
        [ ! -e "$CALLS.broken" ] || {{ echo no such package; exit 1; }} ;;
    *"raise SystemExit"*) shift 3; for word; do echo "[$word]"; done; exit 7 ;;
esac
"""


AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from k8e.cli.first_start import main
os.setgroups([]), os.setgid(65534), os.setuid(65534)
place = sys.argv[2]
os.environ["K8E_DATA_DIR"] = place + "/data"
sys.exit(main(place, place + "/env", sys.executable, ["sandbox", "run", "true"]))
"""

STATUS = ("sandbox", "status")
"""A command that needs no server."""
SHOWN = "[sandbox]\n[status]\n"


@dataclass(frozen=True, slots=True)
class Checkout:
    root: Path
    calls: Path

    def mark(self, name: str) -> Path:
        """A file that tells the stand-in how to behave."""
        return Path(f"{self.calls}.{name}")

    def start(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "k8e"), *arguments],
            env=self.environment(**env),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def environment(self, **env: str) -> dict[str, str]:
        python = str(self.root.parent / "python")
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.root.parent),
            "CALLS": str(self.calls),
            "K8E_PYTHON": python,
            **env,
        }

    def installs(self) -> int:
        return self.calls.read_text(encoding="utf-8").count("pip install") if self.calls.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a check out"
    root.mkdir()
    shutil.copy2(LAUNCHER, root / "k8e")
    (root / "src").symlink_to(ROOT / "src")
    (root / "pyproject.toml").touch()
    os.utime(root / "pyproject.toml", (1, 1))
    (tmp_path / "python").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    return Checkout(root=root, calls=tmp_path / "calls")


def test_the_first_start_installs_and_then_runs(checkout: Checkout) -> None:
    ended = checkout.start("sandbox", "get", "two words", K8E_SANDBOX_ENDPOINT="host.example:1")
    assert (ended.stdout, ended.returncode) == ("[sandbox]\n[get]\n[two words]\n", 7)
    lines = [re.sub(r" \(\d+ s\)$", "", line) for line in ended.stderr.splitlines()]
    assert lines == [
        "k8e: [1/6] Python environment: making it (about 5 s)",
        "k8e: [1/6] Python environment: installing packages (about 1 min)",
        f"k8e: [1/6] Python environment: ready in {checkout.root}/.k8e-env",
    ]
    assert checkout.installs() == 1


def test_a_later_start_only_runs(checkout: Checkout) -> None:
    checkout.start(*STATUS)
    checkout.calls.unlink()
    ended = checkout.start("again")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("[again]\n", "", 7)
    assert len(checkout.calls.read_text(encoding="utf-8").splitlines()) == 1


def test_changed_requirements_are_installed_once(checkout: Checkout) -> None:
    checkout.start(*STATUS)
    stamp = checkout.root / ".k8e-env" / ".stamp"
    os.utime(stamp, (0, 0))
    checkout.start(*STATUS)
    checkout.start(*STATUS)
    assert checkout.installs() == 2


def test_a_moved_checkout_is_installed_again(checkout: Checkout) -> None:
    checkout.start(*STATUS)
    moved = Checkout(root=checkout.root.rename(checkout.root.with_name("moved")), calls=checkout.calls)
    assert moved.start(*STATUS).stdout == SHOWN
    assert moved.installs() == 2


def test_a_failed_install_says_so_and_can_be_run_again(checkout: Checkout) -> None:
    broken = checkout.mark("broken")
    broken.touch()
    ended = checkout.start(*STATUS)
    assert (ended.stdout, ended.returncode) == ("", 2)
    log = checkout.root / ".k8e-env.log"
    assert f"no such package\n(all of it: {log})" in ended.stderr
    assert "Collecting something" in log.read_text()
    broken.unlink()
    assert checkout.start(*STATUS).stdout == SHOWN


def test_a_half_made_environment_is_made_again(checkout: Checkout) -> None:
    (checkout.root / ".k8e-env" / "bin").mkdir(parents=True)
    assert checkout.start(*STATUS).stdout == SHOWN


def test_two_first_starts_install_once(checkout: Checkout) -> None:
    argv, env = [str(checkout.root / "k8e"), *STATUS], checkout.environment()
    starts = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(4)
    ]
    assert [start.communicate(timeout=30)[0] for start in starts] == [SHOWN] * 4
    assert checkout.installs() == 1


def test_a_link_elsewhere_leads_back_to_the_checkout(checkout: Checkout, tmp_path: Path) -> None:
    checkout.start(*STATUS)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "k8e").symlink_to(checkout.root / "k8e")
    ended = subprocess.run(
        ["k8e", *STATUS],
        env=checkout.environment(PATH=f"{tmp_path}/bin:/usr/bin:/bin"),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.stdout == SHOWN
    assert checkout.installs() == 1


def test_the_environment_can_live_elsewhere(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.start(*STATUS, K8E_HOME=str(tmp_path / "home")).stdout == SHOWN
    assert (tmp_path / "home" / ".k8e-env" / ".stamp").is_file()
    assert not (checkout.root / ".k8e-env").exists()


def test_the_callers_directory_cannot_change_which_code_runs(checkout: Checkout) -> None:
    checkout.start(*STATUS)
    assert checkout.calls.read_text(encoding="utf-8").splitlines()[-1].startswith("-I -c ")


def test_help_and_mistakes_are_answered_without_an_environment(checkout: Checkout) -> None:
    helped = checkout.start("--help")
    assert (helped.returncode, helped.stdout.split()[0]) == (0, "usage:")
    mistaken = checkout.start("sandbox", "rum")
    assert (mistaken.returncode, "did you mean 'run'" in mistaken.stdout) == (1, True)
    assert "-m venv" not in checkout.calls.read_text()
    assert sorted(path.name for path in checkout.root.iterdir()) == ["k8e", "pyproject.toml", "src"]


@needs_root("anybody else is told that first")
def test_an_address_that_is_taken_is_said_before_anything_is_made(checkout: Checkout, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        environ = {"K8E_DATA_DIR": str(tmp_path / "data"), "K8E_SANDBOX_LISTEN": address}
        ended = checkout.start("sandbox", "run", "true", **environ)
        as_a_server = checkout.start("server", "--data-dir", str(tmp_path / "data"), "--listen", address)
        elsewhere = checkout.start("sandbox", "run", "true", K8E_SANDBOX_ENDPOINT="host.example:1", **environ)
    for each in (ended, as_a_server):
        assert each.returncode == 2
        assert f"cannot listen on {address}" in each.stderr
        assert "set K8E_SANDBOX_LISTEN=" in each.stderr
    assert json.loads(ended.stdout)["error"] == "server error"
    assert elsewhere.stdout.startswith("[sandbox]\n"), "the control: who needs no server here is not stopped"
    assert not (tmp_path / "data").exists()
    assert checkout.installs() == 1


@needs_root("becomes somebody else")
def test_who_is_not_root_learns_so_before_anything_is_made() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o777)
        argv = [sys.executable, "-I", "-B", "-c", AS_NOBODY, str(ROOT / "src"), name]
        ended = subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False, env={"HOME": name})
        assert (ended.returncode, list(directory.iterdir())) == (2, [])
    assert "the local server needs root" in ended.stderr
    assert "run the same command as root" in ended.stderr


def test_who_comes_second_waits_and_shows_the_same(checkout: Checkout) -> None:
    slow = checkout.mark("slow")
    slow.touch()
    argv, env = [str(checkout.root / "k8e"), *STATUS], checkout.environment()
    first = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert eventually(lambda: checkout.installs() == 1)
    second = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    told = [second.stderr.readline(), second.stderr.readline()]
    slow.unlink()
    assert [each.communicate(timeout=60)[0] for each in (first, second)] == [SHOWN, SHOWN]
    assert "is setting up here; waiting for it" in told[0]
    assert told[1].startswith("k8e: [1/6] Python environment: installing packages")
    assert checkout.installs() == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_first_start_that_is_cut_off_is_simply_run_again(checkout: Checkout, number: signal.Signals) -> None:
    slow = checkout.mark("slow")
    slow.touch()
    first = subprocess.Popen(
        [str(checkout.root / "k8e"), *STATUS],
        env=checkout.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert eventually(lambda: checkout.installs() == 1)
    os.killpg(first.pid, number)
    _, told = first.communicate(timeout=60)
    assert first.returncode != 0
    assert ("run the same command again" in told) == (number is signal.SIGINT)
    slow.unlink()
    assert checkout.start(*STATUS).stdout == SHOWN
