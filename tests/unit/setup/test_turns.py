"""Two set-ups at once: the second shows what the first does, and goes on where the first one dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k8e.setup.report import Activity
from k8e.setup.turns import alone
from tests.support.eventually import eventually

# Holds the lock and does something, until a line comes.
HOLDER = """
import sys
from pathlib import Path
from k8e.setup.report import Silent, Steps
from k8e.setup.turns import alone
lock, shared, log = map(Path, sys.argv[1:])
with alone(lock, shared, Silent()), Steps(Silent(), log=log, shared=shared) as steps:
    steps.step("gVisor").doing("building", usual_s=120)
    print(flush=True)
    sys.stdin.readline()
"""


class Second:
    """Waits for its turn in a thread, and remembers what it told."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.shown: list[str] = []
        self.turns = 0
        self.thread = threading.Thread(target=self._take, args=(directory,))
        self.thread.start()

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, activity: Activity) -> None:
        self.shown.append(activity.line(activity.since))

    def clear(self) -> None: ...

    def _take(self, directory: Path) -> None:
        with alone(directory / "lock", directory / "shared", self):
            self.turns += 1


@contextmanager
def first(directory: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLDER, *(str(directory / name) for name in ("lock", "shared", "log"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


@pytest.mark.parametrize("is_killed", [False, True], ids=["ends", "dies"])
def test_the_second_shows_what_the_first_does_and_then_has_its_turn(tmp_path: Path, is_killed: bool) -> None:
    with first(tmp_path) as holder:
        second = Second(tmp_path)
        assert eventually(lambda: len(second.shown) > 1)
        assert set(second.shown) == {"[3/6] gVisor: building (about 2 min)"}
        assert second.turns == 0
        if is_killed:
            holder.kill()
        else:
            holder.communicate("\n")
    second.thread.join(60)
    told = [f"another k8e (pid {holder.pid}) is setting up here; waiting for it"]
    assert (second.thread.is_alive(), second.turns) == (False, 1)
    assert second.said == told + ["that one died before it was done; going on where it stopped"] * is_killed


def test_whoever_is_alone_waits_for_nobody(tmp_path: Path) -> None:
    second = Second(tmp_path)
    second.thread.join(60)
    assert (second.turns, second.said, second.shown) == (1, [], [])
