"""A crash at every step of create, claim, destroy and refill: after the next start nothing is orphaned."""

from __future__ import annotations

import functools
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from k8e.egress.client import EgressClient
from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.model import Command, Runtime, Shell
from k8e.setup.provision import Provisioned
from k8e.substrate.local.host import cgroup
from k8e.substrate.local.unfinished import UNFINISHED
from tests.support.cells import OWNER
from tests.support.crashing import SCENARIOS, only
from tests.support.engines import machine_for
from tests.support.eventually import eventually
from tests.support.leaks import Lend
from tests.support.places import IMAGES_VARIABLE
from tests.support.substrates import over
from tests.support.traces import collect

pytestmark = pytest.mark.anyio

_NEVER = 1_000_000
_STEPS_IN_CI = 5
"""How many of the steps a short run cuts; `--every-step` cuts all."""
_IN_THE_IMAGE = 90
"""A step of the very first creation at which its virtual environment is being built."""


def _play(data_dir: Path, scenario: str, runtime: Runtime, length: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.support.crashing", str(data_dir), scenario, runtime, str(length)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


async def _recover(data_dir: Path, runtime: Runtime, host: Provisioned) -> int:
    """Start again; how many sessions came back. Each of them must work, and afterwards nothing may remain."""
    settings = EngineSettings(data_dir=data_dir)
    async with (
        EgressClient.open(data_dir) as network,
        Engine.open(settings, over(machine_for(data_dir, only(runtime, host), network))) as engine,
    ):
        views = engine.list_sessions(OWNER)
        for view in views:
            answer = await engine.exec(OWNER, view.session_id, Command(what=Shell("echo alive")))
            assert answer.stdout == b"alive\n"
        await engine.destroy_all()
    return len(views)


def _orphans(data_dir: Path) -> list[str]:
    """What is left of any sandbox below `data_dir`, of whatever kind; workspaces may stay, in use by nobody.

    Nobody is there any more who would remove anything: what goes by itself is a helper of the dead at its own end.
    """
    groups = cgroup.leftover_groups(cgroup.hierarchies(), str(data_dir))
    # Groups are told apart by their mark, and a child of this process without a place belongs to another engine here.
    traces = (trace for trace in collect(str(data_dir)) if trace.kind not in ("cgroup", "child"))
    files = (path for under in ("sandboxes/*", "sessions/*", "workspaces/*/users/*") for path in data_dir.glob(under))
    return [*groups, *(f"{trace.kind} {trace.name}" for trace in traces), *map(str, files)]


def _length(whole: subprocess.CompletedProcess[str]) -> int:
    assert whole.returncode == 0, whole.stderr
    return int(whole.stdout)


@pytest.fixture(scope="module")
def prepared(lend: Lend) -> Callable[[Runtime], Path]:
    """Images and templates are made once; that is no step of the scenarios, so it is done before."""

    @functools.cache
    def prepare(runtime: Runtime) -> Path:
        data_dir = lend(f"crash-{runtime}")
        _length(_play(data_dir, "create", runtime, _NEVER))
        return data_dir

    return prepare


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("runtime", [Runtime.CONTAINER, Runtime.GVISOR], ids=str)
async def test_no_crash_leaves_an_orphan(
    scenario: str,
    runtime: Runtime,
    prepared: Callable[[Runtime], Path],
    host: Provisioned,
    pytestconfig: pytest.Config,
) -> None:
    data_dir = prepared(runtime)
    steps = _length(_play(data_dir, scenario, runtime, _NEVER))
    assert steps > 3
    await _recover(data_dir, runtime, host)
    stride = 1 if pytestconfig.getoption("--every-step") else max(1, math.ceil(steps / _STEPS_IN_CI))
    for step in range(1, steps + 1, stride):
        crashed = _play(data_dir, scenario, runtime, step)
        if crashed.returncode == 0 and step > 3:
            break  # what happens beside the scenario, a refill say, is not always the same
        assert crashed.returncode == -signal.SIGKILL, (step, crashed.stderr)
        # What comes back is a whole session that its owner can see and use: the one to be destroyed, or one that was
        # finished in the very moment of the crash.
        assert await _recover(data_dir, runtime, host) <= 1, f"step {step} of {steps}"
        assert eventually(lambda: not _orphans(data_dir)), (f"step {step} of {steps}", _orphans(data_dir))


async def test_a_crash_while_an_image_is_prepared_is_mended(
    data_dir: Path, host: Provisioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(IMAGES_VARIABLE, raising=False)
    assert _play(data_dir, "create", Runtime.CONTAINER, _IN_THE_IMAGE).returncode == -signal.SIGKILL
    assert list((data_dir / "images").glob(f"{UNFINISHED}*")), "the control: it was cut there"
    assert await _recover(data_dir, Runtime.CONTAINER, host) == 0
    assert eventually(lambda: not _orphans(data_dir)), _orphans(data_dir)
    assert not list((data_dir / "images").glob(f"{UNFINISHED}*"))
