"""A pytest plugin: no test may leave anything on the host, and at the end of the session nothing at all remains.

- `data_dir` is a fresh data directory for one test; whatever a test does below it is looked for afterwards.
- `lend` gives module- and session-wide fixtures a directory. What lives there is left alone between tests and must
  be gone when the session ends.
- What is being cleaned up gets a bounded time to go. `--no-leak-check` turns the checks off, for a debugger's sake.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.traces import Trace, collect, nft_tables

__all__ = ["Ledger", "Lend", "data_dir", "ledger", "lend", "no_leaks", "pytest_addoption"]

PATIENCE_S = 30.0
"""Only what stays costs this time; on a busy machine what is going may need much of it."""
PAUSE_S = 0.02

Lend = Callable[[str], Path]
"""From a name to a directory that outlives single tests."""


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

    def now(self, *, lent_too: bool = False) -> frozenset[Trace]:
        seen = (trace for trace in collect(str(self.root)) if not self._is_foreign(trace))
        return frozenset(trace for trace in seen if lent_too or not self._is_lent(trace))

    def left_over(self, before: frozenset[Trace], *, lent_too: bool = False) -> list[Trace]:
        """What was not there before and does not go away within the time allowed."""
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.now(lent_too=lent_too) - before) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return sorted(left)


def _fail(when: str, left: list[Trace]) -> None:
    lines = "\n".join(f"  {trace.kind}: {trace.name}" for trace in left)
    pytest.fail(f"{when}:\n{lines}", pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-leak-check", action="store_true", help="do not look for what tests leave on the host")


@pytest.fixture(scope="session", autouse=True)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """The session's directories; torn down last of all, when nothing may remain."""
    root = Path(tempfile.mkdtemp(prefix="k8e-t-", dir="/tmp"))
    # Sandboxes run as nobody in particular: their paths must be passable, though not listable, for others.
    root.chmod(0o711)
    book = Ledger(root=root, before=collect(str(root)))
    tables = nft_tables()
    yield book
    if request.config.getoption("--no-leak-check"):
        return
    if left := [*book.left_over(book.before, lent_too=True), *sorted(nft_tables() - tables)]:
        _fail("left on the host at the end of the session", left)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[None]:
    """Compare the host before and after each test."""
    before = ledger.now()
    yield
    if request.config.getoption("--no-leak-check"):
        return
    if left := ledger.left_over(before):
        _fail("the test left on the host", left)
    ledger.clear()


@pytest.fixture(scope="session")
def lend(ledger: Ledger) -> Lend:
    """For servers that several tests share: ask for a directory by name."""
    return ledger.lend


@pytest.fixture
def data_dir(ledger: Ledger) -> Path:
    """A data directory of this test's own."""
    return ledger.make()
