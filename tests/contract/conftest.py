"""What every substrate promises, with every runtime that it has: the same tests at each place.

Tests marked `not_bare` are about isolation, images, limits or the network, which bare sandboxes do not have.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.model import Runtime
from k8e.substrate.local.machine import LocalMachine
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell
from tests.support.engines import RUNTIMES

__all__ = [
    "engine",
    "engine_dir",
    "engine_machine",
    "kill_sandbox",
    "place",
    "pytest_generate_tests",
    "runtime",
    "wheel",
]

BARE = "bare"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        bare = () if metafunc.definition.get_closest_marker("not_bare") else (BARE,)
        # A test that does not choose a runtime has the default one, wherever it is.
        runtimes = RUNTIMES if "runtime" in metafunc.fixturenames else (Runtime.GVISOR,)
        metafunc.parametrize("place", [*bare, *map(str, runtimes)], indirect=True, scope="session")


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> str:
    """Where a test has its sandboxes: a runtime of the local substrate, or the bare one."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def runtime(place: str) -> Runtime:
    """The bare substrate has the kernel that runc has, and takes any name."""
    return Runtime.CONTAINER if place == BARE else Runtime(place)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, place: str) -> Engine:
    found: Engine = request.getfixturevalue("bare_engine" if place == BARE else "local_engine")
    return found


@pytest.fixture(scope="session")
def engine_dir(request: pytest.FixtureRequest, place: str) -> Path:
    found: Path = request.getfixturevalue("bare_dir" if place == BARE else "local_dir")
    return found


@pytest.fixture(scope="session")
def engine_machine(request: pytest.FixtureRequest, place: str) -> BareMachine | LocalMachine:
    found: BareMachine | LocalMachine
    found = request.getfixturevalue("bare_machine" if place == BARE else "local_machine")
    return found


@pytest.fixture(scope="session")
def wheel() -> bytes:
    """A real, tiny wheel, built here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = "hello_wheel-1.0.dist-info"
        archive.writestr("hello_wheel.py", "WORD = 'hello'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-wheel\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: k8e\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"hello_wheel.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return buffer.getvalue()


@pytest.fixture
def kill_sandbox(engine_machine: BareMachine | LocalMachine) -> Callable[[Cell], None]:
    """Kills every process of a session's sandbox, as the host's OOM killer would."""

    def kill(cell: Cell) -> None:
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        if isinstance(engine_machine, BareMachine):
            engine_machine.kill(sandbox)
            return
        mine = f"k8e/{sandbox}/*/cgroup.procs"  # not every group of the host: others come and go meanwhile
        for procs in [path for under in (mine, f"*/{mine}") for path in Path("/sys/fs/cgroup").glob(under)]:
            for pid in procs.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    return kill
