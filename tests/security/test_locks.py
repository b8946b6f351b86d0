"""Another user of the machine can neither keep a server from starting nor make others believe that one runs."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.cli import daemon
from k8e.cli.running import is_running
from k8e.locks import show
from k8e.server import locked, make_directories
from k8e.setup import turns
from k8e.setup.report import Silent

STRANGER = 65534
"""Locks what it is given in every way that it may, says how many ways there were, and stays."""
HOSTILE = """
import fcntl, sys
kept = []
for path in sys.argv[1:]:
    try:
        file = open(path, "rb")
    except OSError:
        continue
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_SH)
    kept.append(file)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
        kept.append(file)
    except OSError:
        pass
print(len(kept), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Where everybody may look, as on a machine that several people use."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        make_directories(Path(name))
        yield Path(name)


@contextlib.contextmanager
def locks_of_a_stranger(*paths: Path) -> Iterator[int]:
    """How many ways it found to lock these; held meanwhile."""
    argv = ["/usr/bin/python3", "-Ic", HOSTILE, *map(str, paths)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=STRANGER, group=STRANGER, extra_groups=()
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def everything(directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if each.is_file()]


def test_no_stranger_keeps_a_server_from_starting(data_dir: Path) -> None:
    with locked(data_dir):
        pass
    with locks_of_a_stranger(*everything(data_dir)) as ways:
        assert ways == 1  # the file that is shown, to read
        with locked(data_dir):
            assert (is_running(data_dir), is_running(data_dir)) == (True, True)  # looking takes nothing away


def test_no_stranger_makes_others_believe_that_a_server_runs(data_dir: Path) -> None:
    with locked(data_dir):
        pass
    shown = data_dir / "server" / "lock"
    with locks_of_a_stranger(shown) as ways:
        assert ways == 1
        assert not is_running(data_dir)
    with show(shown):  # the control
        assert is_running(data_dir)


def test_no_stranger_keeps_others_waiting_for_a_start_or_for_set_up(data_dir: Path) -> None:
    start = data_dir / "server" / "start.lock"
    tools = data_dir / "tools"
    tools.mkdir()
    # As an earlier version left them.
    for each in (start, tools / "lock"):
        each.touch(mode=0o644)
    with daemon.alone(start), turns.alone(tools / "lock", tools / "setup.json", Silent()):
        pass
    with locks_of_a_stranger(start, tools / "lock") as ways:
        assert ways == 0
        with daemon.alone(start), turns.alone(tools / "lock", tools / "setup.json", Silent()):
            # The control: they are locks.
            for each in (start, tools / "lock"):
                with each.open() as other, pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
