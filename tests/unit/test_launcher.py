"""The launcher `./k8e`, in a small checkout with a stand-in for Python that writes down how it was called."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "k8e"

# Answers like an environment's Python: pip succeeds unless a file says otherwise, a program echoes its arguments.
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    *"-m venv"*) shift 3; mkdir -p "$1/bin"; cp "$0" "$1/bin/python" ;;
    *"pip install"*) echo "Collecting something (from k8e)"; [ ! -e "$CALLS.broken" ] || { echo no such package; exit 1; } ;;
    *"raise SystemExit"*) shift 3; for word; do echo "[$word]"; done; exit 7 ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    root: Path
    calls: Path

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
    (root / "pyproject.toml").touch()
    os.utime(root / "pyproject.toml", (1, 1))
    (tmp_path / "python").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    return Checkout(root=root, calls=tmp_path / "calls")


def test_the_first_start_installs_and_then_runs(checkout: Checkout) -> None:
    ended = checkout.start("one", "two words")
    assert (ended.stdout, ended.returncode) == ("[one]\n[two words]\n", 7)
    assert "k8e:   something" in ended.stderr
    assert checkout.installs() == 1


def test_a_later_start_only_runs(checkout: Checkout) -> None:
    checkout.start()
    checkout.calls.unlink()
    ended = checkout.start("again")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("[again]\n", "", 7)
    assert len(checkout.calls.read_text(encoding="utf-8").splitlines()) == 1


def test_changed_requirements_are_installed_once(checkout: Checkout) -> None:
    checkout.start()
    stamp = checkout.root / ".k8e-env" / ".stamp"
    os.utime(stamp, (0, 0))
    checkout.start()
    checkout.start()
    assert checkout.installs() == 2


def test_a_moved_checkout_is_installed_again(checkout: Checkout) -> None:
    checkout.start()
    moved = Checkout(root=checkout.root.rename(checkout.root.with_name("moved")), calls=checkout.calls)
    assert moved.start("x").stdout == "[x]\n"
    assert moved.installs() == 2


def test_a_failed_install_says_so_and_can_be_run_again(checkout: Checkout) -> None:
    broken = Path(f"{checkout.calls}.broken")
    broken.touch()
    ended = checkout.start("x")
    assert (ended.stdout, ended.returncode) == ("", 2)
    assert "no such package" in ended.stderr
    broken.unlink()
    assert checkout.start("x").stdout == "[x]\n"


def test_a_half_made_environment_is_made_again(checkout: Checkout) -> None:
    (checkout.root / ".k8e-env" / "bin").mkdir(parents=True)
    assert checkout.start("x").stdout == "[x]\n"


def test_two_first_starts_install_once(checkout: Checkout) -> None:
    argv, env = [str(checkout.root / "k8e"), "x"], checkout.environment()
    starts = [
        subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(4)
    ]
    assert [start.communicate(timeout=30)[0] for start in starts] == ["[x]\n"] * 4
    assert checkout.installs() == 1


def test_a_link_elsewhere_leads_back_to_the_checkout(checkout: Checkout, tmp_path: Path) -> None:
    checkout.start()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "k8e").symlink_to(checkout.root / "k8e")
    ended = subprocess.run(
        ["k8e", "x"],
        env=checkout.environment(PATH=f"{tmp_path}/bin:/usr/bin:/bin"),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.stdout == "[x]\n"
    assert checkout.installs() == 1


def test_the_environment_can_live_elsewhere(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.start("x", K8E_HOME=str(tmp_path / "home")).stdout == "[x]\n"
    assert (tmp_path / "home" / ".k8e-env" / ".stamp").is_file()
    assert not (checkout.root / ".k8e-env").exists()


def test_the_callers_directory_cannot_change_which_code_runs(checkout: Checkout) -> None:
    checkout.start("x")
    assert checkout.calls.read_text(encoding="utf-8").splitlines()[-1].startswith("-I -c ")
