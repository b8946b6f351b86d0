"""What a person sees of set-up: a line for each step, at a terminal and in a pipe, and a log of all of it."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from k8e.errors import HostUnsupported
from k8e.setup import report
from k8e.setup.report import Activity, Stderr, Steps, duration, shared_activity


class Clock:
    """One that goes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(Stderr(), log=tmp_path / "setup.log", shared=tmp_path / "setup.json")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (40, "40 s"), (59.6, "1 min"), (160, "2 min 40 s"), (900, "15 min")]
)
def test_times_are_short(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_line_says_the_step_what_is_done_and_how_long_that_takes() -> None:
    building = Activity(title=report.title("gVisor"), doing="building", since=5.0, usual_s=180, most_s=900)
    assert building.line(45.0) == "[3/6] gVisor: building (about 3 min, at most 15 min; 40 s so far)"
    assert building.line(5.2) == "[3/6] gVisor: building (about 3 min, at most 15 min)"


def test_in_a_pipe_there_is_a_line_for_each_step_and_one_every_half_minute(
    steps: Steps, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with steps:
        step = steps.step("gVisor")
        step.doing("building", usual_s=120)
        for _ in range(75):
            clock.now += 1
            step.tick()
        step.end("built")
    assert capsys.readouterr().err.splitlines() == [
        "k8e: [3/6] gVisor: building (about 2 min)",
        "k8e: [3/6] gVisor: building (about 2 min; 30 s so far)",
        "k8e: [3/6] gVisor: building (about 2 min; 1 min so far)",
        "k8e: [3/6] gVisor: built (1 min 15 s)",
    ]


def test_at_a_terminal_one_line_is_rewritten(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with os.fdopen(ours, "w") as terminal, os.fdopen(theirs, "rb", buffering=0) as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Steps(Stderr(), log=tmp_path / "log", shared=tmp_path / "json") as steps:
            step = steps.step("gVisor")
            step.doing("building", usual_s=120, most_s=900)
            for _ in range(3):
                clock.now += 1
                step.tick()
                step.tick()
            step.end("built")
        text = ""
        while not text.endswith("\n"):  # a terminal hands on what was written in its own time
            text += seen.read(4096).decode()
    lines = [each.removeprefix("\x1b[K") for each in re.split("\r(?!\n)", text)]
    assert lines == [
        "",
        "k8e: [3/6] gVisor: building (about 2 min, at most 15 min)",
        *(f"k8e: [3/6] gVisor: building (about 2 min, at most 15 min; {n} s so far)"[:59] for n in (1, 2, 3)),
        "k8e: [3/6] gVisor: built (3 s)\r\n",
    ]


def test_nothing_is_said_where_nothing_had_to_be_done(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    with steps:
        steps.step("system packages").end("all there")
        steps.step("gVisor").end("found")
    assert not steps.has_worked
    assert capsys.readouterr().err == ""
    assert not steps.log_path.exists()


def test_where_one_step_works_all_are_told(steps: Steps, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with steps:
        steps.step("system packages").end("all there")
        step = steps.step("gVisor")
        step.doing("building")
        step.end("built")
        steps.step("TypeScript").end("tsx")
    assert steps.has_worked
    assert capsys.readouterr().err.splitlines() == [
        "k8e: [2/6] system packages: all there",
        "k8e: [3/6] gVisor: building",
        "k8e: [3/6] gVisor: built (0 s)",
        "k8e: [4/6] TypeScript: tsx",
    ]


def test_what_is_done_can_be_read_by_others_until_it_ends(steps: Steps, tmp_path: Path) -> None:
    shared = tmp_path / "setup.json"
    with steps:
        steps.step("gVisor").doing("building", usual_s=120)
        activity = shared_activity(shared)
        assert activity is not None
        assert (activity.title, activity.doing, activity.usual_s) == ("[3/6] gVisor", "building", 120)
    assert shared_activity(shared) is None
    assert not shared.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"title": 1}', '{"other": 1}'])
def test_what_others_wrote_may_be_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "shared").write_text(text)
    assert shared_activity(tmp_path / "shared") is None


def test_a_long_program_is_heard_of(steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.setup.programs.TICK_S", 0.02)
    mark = tmp_path / "heard"
    with steps:
        step = steps.step("gVisor")
        step.doing("building")
        monkeypatch.setattr(steps.report, "show", lambda activity: mark.touch())
        # It takes as long as it takes until it is heard of.
        step.run(["sh", "-c", f"until [ -e {mark} ]; do sleep 0.02; done"], timeout_s=60)


def test_a_failure_carries_the_command_its_last_lines_and_where_all_of_it_is(steps: Steps, tmp_path: Path) -> None:
    argv = ["sh", "-c", "for n in $(seq 30); do echo line $n; done; exit 7"]
    with steps, pytest.raises(HostUnsupported, match=r"(?s)^sh -c .*exit code 7.*line 30.*setup\.log") as caught:
        steps.step("TypeScript").run(argv, timeout_s=60)
    assert "line 2\n" not in str(caught.value)
    assert "line 2\n" in (tmp_path / "setup.log").read_text()
    assert (tmp_path / "setup.log").stat().st_mode & 0o777 == 0o600


def test_a_missing_program_is_an_unsupported_host(steps: Steps) -> None:
    with steps, pytest.raises(HostUnsupported, match="cannot start"):
        steps.step("TypeScript").run(["/nonexistent/program"], timeout_s=60)
