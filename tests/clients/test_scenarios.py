"""What users type, as shell scripts that say themselves when something is wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "scenarios").glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_scenario_works_as_typed(script: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-x", str(script)], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
