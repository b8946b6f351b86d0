"""Runs that could not be started: nothing is left of them, neither here, nor for the next server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from k8e.engine.commands import Commands
from k8e.engine.engine import Engine
from k8e.engine.gatekeeper import Gatekeeper
from k8e.engine.process import Process
from k8e.engine.runs import RunView
from k8e.engine.session import Session
from k8e.engine.settings import Quotas
from k8e.errors import Exhausted, InvalidSpec, K8eError, NotFound, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import Command, Runtime, SecretRef, SessionSpec, Shell
from tests.support.cells import OWNER, Cell
from tests.support.restartable_engine import RestartableEngine

pytestmark = pytest.mark.anyio


_SLEEP = Command(what=Shell("sleep 1000"))


async def _session(engine: Engine, runtime: Runtime, **options: Any) -> Cell:
    """One that outlives its engine, as all do."""
    return Cell(engine, (await engine.create_session(OWNER, SessionSpec(runtime=runtime, **options))).session_id)


def _traces(restartable: RestartableEngine, cell: Cell) -> list[str]:
    """Whatever is known of runs of this session."""
    listed = [run.run_id for run in cell.engine.list_runs(OWNER, cell.id)]
    files = [path.name for path in restartable.kept(cell).glob("run-*")]
    return [*listed, *files, *["one runs"] * cell.engine.get_session(OWNER, cell.id).background_runs]


async def _traces_later(restartable: RestartableEngine, cell: Cell) -> list[str]:
    """The same, as the next server knows it."""
    async with restartable.open() as engine:
        return _traces(restartable, Cell(engine, cell.id))


async def test_a_run_that_began_leaves_traces(runtime: Runtime, restartable: RestartableEngine) -> None:
    """The control: whatever the others find missing is there when a run begins."""
    async with restartable.open() as engine:
        cell = await _session(engine, runtime)
        run = await engine.start_run(OWNER, cell.id, Command(what=Shell("echo begun; sleep 600"), timeout_s=0))
        async with asyncio.timeout(60):
            while not (await engine.poll_run(OWNER, run.run_id)).stdout:
                await asyncio.sleep(0.01)
        assert _traces(restartable, cell) == [run.run_id, run.run_id, "one runs"]
    assert await _traces_later(restartable, cell) == [run.run_id, run.run_id, "one runs"]


async def test_one_that_is_too_large_leaves_nothing(runtime: Runtime, restartable: RestartableEngine) -> None:
    async with restartable.open() as engine:
        cell = await _session(engine, runtime)
        with pytest.raises(InvalidSpec, match="larger than"):
            await engine.start_run(OWNER, cell.id, Command(what=Shell("true " + "x" * 2_000_000)))
        assert _traces(restartable, cell) == []
    assert await _traces_later(restartable, cell) == []


async def test_one_whose_secret_is_gone_leaves_nothing(runtime: Runtime, restartable: RestartableEngine) -> None:
    ref = SecretRef(secret_name="short-lived", key="value", env_var="TOKEN")
    async with restartable.open() as engine:
        await engine.set_secret(OWNER, "short-lived", "value", b"a value of some length")
        cell = await _session(engine, runtime, secret_refs=(ref,))
        await engine.delete_secret(OWNER, "short-lived")
        with pytest.raises(K8eError, match="short-lived"):
            await engine.start_run(OWNER, cell.id, _SLEEP)
        assert _traces(restartable, cell) == []
    assert await _traces_later(restartable, cell) == []


async def test_one_too_many_leaves_nothing(runtime: Runtime, restartable: RestartableEngine) -> None:
    async with restartable.open(quotas=Quotas(execs_per_session=1)) as engine:
        cell = await _session(engine, runtime)
        busy = await engine.open_exec(OWNER, cell.id, _SLEEP)
        with pytest.raises(Exhausted, match="already runs"):
            await engine.start_run(OWNER, cell.id, _SLEEP)
        assert _traces(restartable, cell) == []
        await busy.close()
    assert await _traces_later(restartable, cell) == []


async def test_one_whose_caller_leaves_before_it_began_leaves_nothing(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = asyncio.Event()

    async def never(*_args: Any, **_options: Any) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    async with restartable.open() as engine:
        cell = await _session(engine, runtime)
        monkeypatch.setattr(Commands, "start", never)
        call = asyncio.ensure_future(engine.start_run(OWNER, cell.id, _SLEEP))
        await is_asked.wait()
        (run,) = engine.list_runs(OWNER, cell.id)
        following = asyncio.ensure_future(anext(aiter(engine.open_run(OWNER, run.run_id))))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert _traces(restartable, cell) == []
        await following  # whoever had found it already hears that it is over
    assert await _traces_later(restartable, cell) == []


async def test_one_in_a_lost_session_leaves_nothing(
    runtime: Runtime, restartable: RestartableEngine, kill_sandbox: Callable[[Cell], None]
) -> None:
    async with restartable.open() as engine:
        cell = await _session(engine, runtime)
        kill_sandbox(cell)
        async with asyncio.timeout(60):
            while engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxLost):
            await engine.start_run(OWNER, cell.id, _SLEEP)
        assert _traces(restartable, cell) == []
    assert await _traces_later(restartable, cell) == []


Start: TypeAlias = Callable[[Cell, list[Session]], Awaitable[None]]
"""Starts a run, ends its session on the way, and says which one that was: nobody can ask for it any more."""


async def _is_forgotten_with_its_session(restartable: RestartableEngine, runtime: Runtime, start: Start) -> None:
    """Whatever was left of the run would be found by the next session of that name."""
    async with restartable.open() as engine:
        cell, ended = await _session(engine, runtime, session_id="same-name"), list[Session]()
        directory = restartable.kept(cell)
        with pytest.raises(SandboxLost):
            await start(cell, ended)
        assert not directory.exists()
        assert [session.view().background_runs for session in ended] == [0]
        again = await _session(engine, runtime, session_id="same-name")
        assert _traces(restartable, again) == []
    assert await _traces_later(restartable, again) == []


async def test_one_asked_for_just_before_its_session_ended_leaves_nothing(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(cell: Cell, ended: list[Session]) -> None:
        async def consent_late(_gatekeeper: Gatekeeper, session: Session, *_args: object) -> None:
            await cell.engine.destroy_session(OWNER, cell.id)
            ended.append(session)

        monkeypatch.setattr(Gatekeeper, "command", consent_late)
        await cell.engine.start_run(OWNER, cell.id, _SLEEP)

    await _is_forgotten_with_its_session(restartable, runtime, start)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_one_whose_session_ends_meanwhile_leaves_nothing(
    runtime: Runtime, restartable: RestartableEngine, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    begin, known = Commands.start, list[RunView]()

    async def start(cell: Cell, ended: list[Session]) -> None:
        async def end_beside(commands: Commands, process: Process, *args: Any, **options: Any) -> None:
            if has_begun:
                await begin(commands, process, *args, **options)
            known.extend(cell.engine.list_runs(OWNER, cell.id))
            await cell.engine.destroy_session(OWNER, cell.id)
            ended.append(process.session)
            if not has_begun:
                await begin(commands, process, *args, **options)

        monkeypatch.setattr(Commands, "start", end_beside)
        try:
            await cell.engine.start_run(OWNER, cell.id, _SLEEP)
        finally:
            (run,) = known
            with pytest.raises(NotFound):
                await cell.engine.poll_run(OWNER, run.run_id)

    await _is_forgotten_with_its_session(restartable, runtime, start)
