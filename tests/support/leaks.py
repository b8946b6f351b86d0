"""A pytest plugin: no test may leave anything on the host, and at the end of the session nothing at all remains.

- `data_dir` is a fresh data directory for one test; whatever a test does below it is looked for afterwards.
- `lend` gives module- and session-wide fixtures a directory. What lives there is left alone between tests and must
  be gone when the session ends.
- A test of pure code can leave only open files and children of its own process, so only these are looked for after it;
  the scan at the end of the session sees the rest. Which tests those are says `_can_leave_traces`.
- What is being cleaned up gets a bounded time to go. `--no-leak-check` turns the checks off, for a debugger's sake.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.places import RUN_DIR_VARIABLE
from tests.support.results import FINAL
from tests.support.traces import Trace, collect, nft_tables, of_this_process

__all__ = [
    "Ledger",
    "LeftBySession",
    "Lend",
    "data_dir",
    "ledger",
    "lend",
    "no_leaks",
    "pytest_addoption",
    "pytest_runtest_makereport",
]

PATIENCE_S = 30.0
"""Only what stays costs this time; on a busy machine what is going may need much of it."""
PAUSE_S = 0.02

Lend = Callable[[str], Path]
"""From a name to a directory that outlives single tests."""
Look = Callable[[str], frozenset[Trace]]
"""From our root to what of ours exists now."""

_PURE = Path(__file__).resolve().parents[1] / "unit"
_DIRECTORIES = frozenset({"data_dir", "lend"})
"""Fixtures that give a test a directory whose traces are ours."""


@dataclass(slots=True)
class Ledger:
    """Which directory belongs to whom."""

    root: Path
    """Short, because the paths of unix sockets are limited to 107 bytes."""
    before: frozenset[Trace]
    lent: set[str] = field(default_factory=set)
    fresh: list[Path] = field(default_factory=list)
    """Made for the running test; removed after it, unless something still lives there."""

    def make(self) -> Path:
        directory = Path(tempfile.mkdtemp(prefix="d-", dir=self.root))
        directory.chmod(0o711)
        self.fresh.append(directory)
        return directory

    def clear(self) -> None:
        while self.fresh:
            shutil.rmtree(self.fresh.pop(), ignore_errors=True)

    def lend(self, name: str) -> Path:
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))
        directory.chmod(0o711)
        self.lent.add(str(directory))
        return directory

    def _is_lent(self, trace: Trace) -> bool:
        return any(trace.place.startswith(directory) for directory in self.lent)

    def _is_foreign(self, trace: Trace) -> bool:
        """Another k8e on this host has sandboxes of its own."""
        return bool(trace.place) and not trace.place.startswith(str(self.root))

    def now(self, look: Look = collect, *, lent_too: bool = False) -> frozenset[Trace]:
        seen = (trace for trace in look(str(self.root)) if not self._is_foreign(trace))
        return frozenset(trace for trace in seen if lent_too or not self._is_lent(trace))

    def left_over(self, before: frozenset[Trace], look: Look = collect, *, lent_too: bool = False) -> list[Trace]:
        """What was not there before and does not go away within the time allowed."""
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.now(look, lent_too=lent_too) - before) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return sorted(left)


class LeftBySession(Exception):
    """No single test's fault: the one that happens to be the last would pass when run again."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and _is_of_session(call.excinfo.value):
        report.user_properties.append((FINAL, True))
    return report


def _is_of_session(error: BaseException) -> bool:
    """Alone, or together with what other clean-ups of the session say."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(LeftBySession) is not None
    return isinstance(error, LeftBySession)


def _listed(when: str, left: list[Trace]) -> str:
    return "\n".join([f"{when}:", *(f"  {trace.kind}: {trace.name}" for trace in left)])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-leak-check", action="store_true", help="do not look for what tests leave on the host")


@pytest.fixture(scope="session", autouse=True)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The session's directories; torn down last of all, when nothing may remain."""
    root = Path(tempfile.mkdtemp(prefix="t-", dir=os.environ.get(RUN_DIR_VARIABLE, "/tmp")))
    # Sandboxes run as nobody in particular: their paths must be passable, though not listable, for others.
    root.chmod(0o711)
    book = Ledger(root=root, before=collect(str(root)))
    tables = nft_tables()
    yield book
    if request.config.getoption("--no-leak-check"):
        return
    if left := [*book.left_over(book.before, lent_too=True), *sorted(nft_tables() - tables)]:
        raise LeftBySession(_listed("left on the host at the end of the session", left))
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[None]:
    """Compare the host before and after each test."""
    look = collect if _can_leave_traces(request) else of_this_process
    before = ledger.now(look)
    yield
    if request.config.getoption("--no-leak-check"):
        return
    if left := ledger.left_over(before, look):
        pytest.fail(_listed("the test left on the host", left), pytrace=False)
    ledger.clear()


def _can_leave_traces(request: pytest.FixtureRequest) -> bool:
    """Whether a test can make mounts, control groups, daemons and the like: all can that are not of pure code."""
    return _PURE not in request.path.parents or not _DIRECTORIES.isdisjoint(request.fixturenames)


@pytest.fixture(scope="session")
def lend(ledger: Ledger) -> Lend:
    """For servers that several tests share: ask for a directory by name."""
    return ledger.lend


@pytest.fixture
def data_dir(ledger: Ledger) -> Path:
    """A data directory of this test's own."""
    return ledger.make()
