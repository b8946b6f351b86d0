"""The engine's own decisions, which do not depend on how sandboxes are isolated: the real engine, on bare ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.model import Runtime
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, Cell

__all__ = ["engine", "engine_dir", "engine_machine", "kill_sandbox", "runtime"]


@pytest.fixture(scope="session")
def engine_dir(bare_dir: Path) -> Path:
    return bare_dir


@pytest.fixture(scope="session")
def engine_machine(bare_machine: BareMachine) -> BareMachine:
    return bare_machine


@pytest.fixture(scope="session")
def engine(bare_engine: Engine) -> Engine:
    return bare_engine


@pytest.fixture
def runtime() -> Runtime:
    """Any that the bare substrate says it has."""
    return Runtime.CONTAINER


@pytest.fixture
def kill_sandbox(bare_machine: BareMachine) -> Callable[[Cell], None]:
    """Kills a session's sandbox, as the host's OOM killer would."""

    def kill(cell: Cell) -> None:
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        bare_machine.kill(sandbox)

    return kill
