"""Runs that could not be started, on every runtime: nothing is left of them, in memory, in the store or on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k8e.engine.engine import Engine
from k8e.engine.session import Session
from k8e.engine.settings import EngineSettings
from k8e.errors import Exhausted, InvalidSpec, K8eError, SandboxLost
from k8e.lifecycle import Phase
from k8e.model import Command, Runtime, SecretRef, Shell
from tests.support.cells import OWNER, Cell, CellFactory

pytestmark = pytest.mark.anyio

_SLEEP = Command(what=Shell("sleep 1000"))


def _session(cell: Cell) -> Session:
    return cell.engine._sessions.find(OWNER, cell.id)


def _directory(cell: Cell, session: Session) -> Path:
    settings: EngineSettings = cell.engine._settings
    assert session.box is not None
    return settings.data_dir / "sessions" / session.box.id


async def _traces(cell: Cell, session: Session) -> list[object]:
    """Whatever is known of runs of this session."""
    store = cell.engine._store
    await store.commit()  # after all that was handed in
    rows = [row["id"] for row in store.rows("SELECT id FROM runs WHERE session_id=?", (cell.id,))]
    files = [path.name for path in _directory(cell, session).glob("run-*")]
    return [*rows, *files, *cell.engine._runs.of(session), *[session.runs] * bool(session.runs)]


async def test_a_run_that_began_leaves_traces(cell: Cell) -> None:
    """The control: whatever the others find missing is there when a run begins."""
    run = await cell.engine.start_run(OWNER, cell.id, _SLEEP)
    session = _session(cell)
    assert await _traces(cell, session) == [run.run_id, run.run_id, *cell.engine._runs.of(session), 1]


async def test_one_that_is_too_large_leaves_nothing(cell: Cell) -> None:
    with pytest.raises(InvalidSpec, match="larger than"):
        await cell.engine.start_run(OWNER, cell.id, Command(what=Shell("true " + "x" * 2_000_000)))
    assert await _traces(cell, _session(cell)) == []


async def test_one_whose_secret_is_gone_leaves_nothing(runtime: Runtime, cells: CellFactory, engine: Engine) -> None:
    ref = SecretRef(secret_name="short-lived", key="value", env_var="TOKEN")
    await engine.set_secret(OWNER, "short-lived", "value", b"a value of some length")
    async with cells(runtime, secret_refs=(ref,)) as cell:
        await engine.delete_secret(OWNER, "short-lived")
        with pytest.raises(K8eError, match="short-lived"):
            await engine.start_run(OWNER, cell.id, _SLEEP)
        assert await _traces(cell, _session(cell)) == []


async def test_one_too_many_leaves_nothing(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell.engine._commands, "_at_once", 0)
    with pytest.raises(Exhausted, match="already runs"):
        await cell.engine.start_run(OWNER, cell.id, _SLEEP)
    assert await _traces(cell, _session(cell)) == []


async def test_one_whose_caller_leaves_before_it_began_leaves_nothing(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = asyncio.Event()

    async def never(*_args: Any, **_options: Any) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(cell.engine._commands, "start", never)
    call = asyncio.ensure_future(cell.engine.start_run(OWNER, cell.id, _SLEEP))
    await is_asked.wait()
    following = asyncio.ensure_future(anext(aiter(cell.engine._runs.of(_session(cell))[0].follow({}))))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await _traces(cell, _session(cell)) == []
    await following  # whoever had found it already hears that it is over


async def test_one_in_a_lost_session_leaves_nothing(
    runtime: Runtime, cells: CellFactory, kill_sandbox: Callable[[Cell], None]
) -> None:
    async with cells(runtime) as cell:
        kill_sandbox(cell)
        async with asyncio.timeout(60):
            while cell.engine.get_session(OWNER, cell.id).phase is not Phase.FAILED:
                await asyncio.sleep(0.01)
        with pytest.raises(SandboxLost):
            await cell.engine.start_run(OWNER, cell.id, _SLEEP)
        assert await _traces(cell, _session(cell)) == []


async def test_one_asked_for_just_before_its_session_ended_leaves_nothing(runtime: Runtime, cells: CellFactory) -> None:
    async with cells(runtime) as cell:
        session = _session(cell)
        await cell.engine.destroy_session(OWNER, cell.id)
        with pytest.raises(SandboxLost):
            # As when it had to wait for somebody's consent.
            await cell.engine._runs.start(session, _SLEEP)
        assert await _traces(cell, session) == []
        assert not _directory(cell, session).exists()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_one_whose_session_ends_meanwhile_leaves_nothing(
    runtime: Runtime, cells: CellFactory, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    async with cells(runtime) as cell:
        session, start = _session(cell), cell.engine._commands.start

        async def end_beside(*args: Any, **options: Any) -> Any:
            stream = await start(*args, **options) if has_begun else None
            await cell.engine.destroy_session(OWNER, cell.id)
            return stream or await start(*args, **options)

        monkeypatch.setattr(cell.engine._commands, "start", end_beside)
        with pytest.raises(SandboxLost):
            await cell.engine.start_run(OWNER, cell.id, _SLEEP)
        assert await _traces(cell, session) == []
        assert not _directory(cell, session).exists()
