"""The pytest plugin of `tests.run`: `--results FILE` writes down what became of every test, `--part` picks some of them.

The runner reads the file: it runs again what failed, and says what took long and what was left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

__all__ = [
    "ALONE",
    "FINAL",
    "PLUGIN",
    "TOGETHER",
    "Result",
    "Writer",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "read",
]

PLUGIN: Final = __name__
TOGETHER: Final = "together"
ALONE: Final = "alone"
FINAL: Final = "final"
"""The property of a report that no second run can heal, such as something that a whole session left on the host."""

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one test, its set-up and clean-up included."""

    test: str
    outcome: Outcome
    seconds: float
    text: str = ""
    """Of the first failure, or the reason of a skip."""
    is_final: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="append what became of every test to this file, a JSON line each")
    parser.addoption("--part", choices=(TOGETHER, ALONE), help="only tests that may, or may not, run beside others")


def pytest_configure(config: pytest.Config) -> None:
    # A worker's reports reach the process that started it, and only that one writes.
    if (path := config.getoption("--results")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(path), "k8e-results")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is None:
        return
    chosen = [item for item in items if (item.get_closest_marker("alone") is not None) == (part == ALONE)]
    left = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = chosen


class Writer:
    """Appends a line per report; a run that is cut short keeps what it had."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome: Outcome = "passed" if hasattr(report, "wasxfail") else report.outcome
        text = "" if outcome == "passed" else _text(report)
        is_final = (FINAL, True) in report.user_properties
        self._write(Result(test=report.nodeid, outcome=outcome, seconds=report.duration, text=text, is_final=is_final))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read is a failure of everything in it."""
        if report.failed:
            self._write(
                Result(test=report.nodeid, outcome="failed", seconds=0, text=report.longreprtext, is_final=True)
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that was told to stop at its first failures has not run the rest."""
        if why := session.shouldfail:
            self._write(Result(test="the rest of the run", outcome="failed", seconds=0, text=str(why), is_final=True))

    def _write(self, result: Result) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _text(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext


def read(path: Path) -> list[Result]:
    """One result per test, in the order in which they began; a test that failed in any of its phases has failed."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    by_test: dict[str, list[Result]] = {}
    for line in lines:
        by_test.setdefault(line["test"], []).append(Result(**line))
    return [_joined(phases) for phases in by_test.values()]


def _joined(phases: Sequence[Result]) -> Result:
    worst = next(_of(phases, "failed"), None) or next(_of(phases, "skipped"), None) or phases[0]
    return Result(
        test=worst.test,
        outcome=worst.outcome,
        seconds=sum(phase.seconds for phase in phases),
        text=worst.text,
        is_final=any(phase.is_final for phase in phases),
    )


def _of(phases: Iterable[Result], outcome: Outcome) -> Iterator[Result]:
    return (phase for phase in phases if phase.outcome == outcome)
