"""What users download, built once per session from this checkout."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["ROOT", "Dist", "dist"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Dist:
    """The three things that `make dist` makes."""

    wheel: Path
    sdist: Path
    program: Path


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(target)], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "packaging/onefile.py", str(target)], cwd=ROOT, check=True)
    [wheel], [sdist] = target.glob("*.whl"), target.glob("*.tar.gz")
    return Dist(wheel=wheel, sdist=sdist, program=target / "k8e")
