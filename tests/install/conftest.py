"""What users download, built once per run from this checkout."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.shared_builds import built_once

__all__ = ["ROOT", "Dist", "dist"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Dist:
    """The three things that `make dist` makes."""

    wheel: Path
    sdist: Path
    program: Path


def _build(target: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(target)], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "packaging/onefile.py", str(target)], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    target = built_once(tmp_path_factory, "dist", _build)
    [wheel], [sdist] = target.glob("*.whl"), target.glob("*.tar.gz")
    return Dist(wheel=wheel, sdist=sdist, program=target / "k8e")
