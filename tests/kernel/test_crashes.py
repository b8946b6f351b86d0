"""A crash at every step of create, claim, destroy and refill: after the next start nothing is orphaned."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings, PoolSettings
from k8e.model import Command, Runtime, Shell
from k8e.setup.provision import Provisioned
from tests.support.cells import OWNER
from tests.support.crashing import SCENARIOS
from tests.support.engines import substrate_for

pytestmark = pytest.mark.anyio

_NEVER = 1_000_000
_STEPS_IN_CI = 7
"""How many of the steps a short run cuts; `--every-step` cuts all."""


def _play(data_dir: Path, scenario: str, runtime: Runtime, length: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.support.crashing", str(data_dir), scenario, runtime, str(length)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


async def _recover(data_dir: Path, host: Provisioned) -> int:
    """Start again; how many sessions came back. Each of them must work, and afterwards nothing may remain."""
    settings = EngineSettings(data_dir=data_dir, pool=PoolSettings(min=0))
    async with Engine.open(settings, substrate_for(data_dir, host)) as engine:
        views = engine.list_sessions(OWNER)
        for view in views:
            answer = await engine.exec(OWNER, view.session_id, Command(what=Shell("echo alive")))
            assert answer.stdout == b"alive\n"
        await engine.destroy_all()
    return len(views)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("runtime", [Runtime.CONTAINER, Runtime.GVISOR], ids=str)
async def test_no_crash_leaves_an_orphan(
    scenario: str, runtime: Runtime, data_dir: Path, host: Provisioned, pytestconfig: pytest.Config
) -> None:
    whole = _play(data_dir, scenario, runtime, _NEVER)
    assert whole.returncode == 0, whole.stderr
    steps = int(whole.stdout)
    assert steps > 3
    if scenario == "refill":
        await _recover(data_dir, host)
    stride = 1 if pytestconfig.getoption("--every-step") else max(1, steps // _STEPS_IN_CI)
    for step in range(1, steps + 1, stride):
        crashed = _play(data_dir, scenario, runtime, step)
        assert crashed.returncode == -signal.SIGKILL, (step, crashed.stderr)
        # What comes back is a whole session that its owner can see and use: the one to be destroyed, or one that was
        # finished in the very moment of the crash.
        assert await _recover(data_dir, host) <= 1, f"step {step} of {steps}"
        left = sorted(str(path) for path in (data_dir / "sandboxes").iterdir())
        assert left == [], f"step {step} of {steps}"
