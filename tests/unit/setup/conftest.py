"""A step of set-up that tells nobody what it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.setup.report import Silent, Step, Steps

__all__ = ["step"]


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Step]:
    with Steps(Silent(), log=tmp_path / "setup.log", shared=tmp_path / "setup.json") as steps:
        yield steps.step("gVisor")
