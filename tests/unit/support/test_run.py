"""The runner behind `make test`: what it runs once more, what it forgives, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import FLAKY_ALLOWED, shown, summed_up
from tests.support.results import Result

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 100.0

FAILS_ONCE = """
import os, pathlib, pytest

def once(name):
    marker = pathlib.Path(__file__).with_name(name)
    if not marker.exists():
        marker.touch()
        raise RuntimeError("only the first time")

def test_that_passes(): pass

def test_beside_others(): assert os.environ.get("PYTEST_XDIST_WORKER")

@pytest.mark.alone
def test_alone(): assert not os.environ.get("PYTEST_XDIST_WORKER")

def test_left_out(): pytest.skip("no such thing here")

def test_once(): once("one")

@pytest.mark.alone
def test_once_alone(): once("two")
"""
FAILS_FOR_GOOD = """
import pathlib

def test_that_passes(): pass

def test_always(): raise RuntimeError("every time")

def test_final(record_property):
    marker = pathlib.Path(__file__).with_name("final")
    if not marker.exists():
        marker.touch()
        record_property("final", True)
        raise RuntimeError("would pass later")
"""


CANNOT_BE_READ_BESIDE_OTHERS = """
import os, pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    raise RuntimeError("cannot be read here")

@pytest.mark.alone
def test_alone(): pass
"""
LEAVES_A_FILE_OPEN = """
from tests.support import leaks

leaks.PATIENCE_S = 0.1
kept = []

def test_that_keeps_a_file_open(lend): kept.append((lend("x") / "file").open("w"))
"""


def run(directory: Path, source: str, *options: str, jobs: int = 1) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    (directory / "test_sample.py").write_text(source)
    # This test may itself run beside others, and says so to its children.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.run",
            "--no-set-up",
            "--jobs",
            str(jobs),
            ".",
            "--",
            "-p",
            "no:cacheprovider",
            *options,
        ],
        cwd=directory,
        env=outside | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def result(name: str, outcome: str = "failed", **more: object) -> Result:
    return Result(**{"test": name, "outcome": outcome, "seconds": 1.0, **more})  # type: ignore[arg-type]


def test_what_passes_by_itself_is_named_as_flaky_and_the_run_is_green(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS_ONCE, jobs=2)
    assert done.returncode == 0, done.stdout
    left_out, _, flaky = done.stdout.partition("== LEFT OUT")[2].partition("== FLAKY")
    assert "1 tests: no such thing here" in left_out
    assert "test_sample.py::test_once\n" in flaky
    assert "test_sample.py::test_once_alone\n" in flaky
    assert "only the first time" in flaky
    assert done.stdout.splitlines()[-1] == "5 passed, 0 failed, 1 skipped"


def test_what_fails_again_is_a_failure_and_so_is_what_no_second_run_can_heal(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS_FOR_GOOD, jobs=2)
    assert done.returncode == 1
    failed = done.stdout.partition("== FAILED")[2]
    assert "every time" in failed
    assert "would pass later" in failed
    assert "== FLAKY" not in done.stdout
    assert done.stdout.splitlines()[-1] == "1 passed, 2 failed"


def test_what_a_whole_session_left_on_the_host_is_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, LEAVES_A_FILE_OPEN, "-p", "tests.support.leaks")
    assert "left on the host at the end of the session" in done.stdout.partition("== FAILED")[2]
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "0 passed, 1 failed")


def test_a_file_that_only_some_processes_can_read_is_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, CANNOT_BE_READ_BESIDE_OTHERS, jobs=2)
    assert done.returncode == 1
    assert "cannot be read here" in done.stdout.partition("== FAILED")[2]


def test_a_run_that_stops_at_its_first_failure_is_not_healed(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS_ONCE.replace("def test_that_passes(): pass", 'def test_first(): once("zero")'), "-x")
    assert done.returncode == 1
    assert "the rest of the run" in done.stdout.partition("== FAILED")[2]


@pytest.mark.parametrize("options", [("--no-such-option",), ("-k", "no_such_test")])
def test_a_run_of_no_test_is_no_success(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, "def test_that_passes(): pass\n", *options)
    assert done.returncode != 0
    assert ("NOT FINISHED" in done.stdout) is (options == ("--no-such-option",))


@pytest.mark.parametrize("flaky", [FLAKY_ALLOWED, FLAKY_ALLOWED + 1])
def test_too_many_flaky_tests_make_a_run_red(flaky: int) -> None:
    names = [f"t::{number}" for number in range(flaky)]
    summary = summed_up([result(name) for name in names], [result(name, "passed") for name in names])
    assert (summary.exit_code, len(summary.failed)) == (int(flaky > FLAKY_ALLOWED), 0)
    assert ("flaky tests; more than" in shown(summary)) is (flaky > FLAKY_ALLOWED)


def test_slowest_tests_and_time_per_folder_are_shown() -> None:
    results = [result(f"tests/a/test_x.py::test_{n}", "passed", seconds=float(n)) for n in range(12)]
    text = shown(summed_up([*results, result("tests/b/test_y.py::test_z", "passed")], []))
    slowest, _, folders = text.partition("== time per folder")
    assert [line.split("::")[1] for line in slowest.splitlines() if "::" in line] == [
        f"test_{n}" for n in range(11, 1, -1)
    ]
    assert "66.0 s     12 tests  tests/a" in folders
    assert "1.0 s      1 tests  tests/b" in folders


def test_a_second_failure_does_not_hide_the_first_text() -> None:
    first = [result("t::a", text="the first"), result("t::b", "passed")]
    summary = summed_up(first, [result("t::a", "failed", text="another")])
    assert [failure.text for failure in summary.failed] == ["the first"]
    assert summary.exit_code == 1
