"""A change goes on to its end when whoever asked for it leaves: what is kept and what is told are the same."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from k8e.errors import InvalidSpec
from k8e.model import Runtime, SecretRef, SessionSpec
from tests.support.cells import OWNER
from tests.support.restartable_engine import RestartableEngine, Write

pytestmark = pytest.mark.anyio

_PATIENCE_S = 60.0


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Whatever is committed meanwhile waits for the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


async def _leave(path: Path, call: Coroutine[Any, Any, object]) -> None:
    """Ask, and be cancelled while the file is written."""
    with _held(path):
        asking = asyncio.ensure_future(call)
        for _ in range(10):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_secret_whose_setting_or_deletion_is_cancelled_is_listed_as_it_is_kept(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    file = restartable.directory / "secrets.sqlite"
    spec = SessionSpec(runtime=runtime, secret_refs=(SecretRef(secret_name="mine", key="k", env_var="MINE"),))
    async with restartable.open() as engine:
        await _leave(file, engine.set_secret(OWNER, "mine", "k", b"value"))
        await engine.set_secret(OWNER, "later", "k", b"v")
        assert [each.name for each in engine.list_secrets(OWNER)] == ["later", "mine"]
        view = await engine.create_session(OWNER, spec)
        await engine.destroy_session(OWNER, view.session_id)
        await _leave(file, engine.delete_secret(OWNER, "mine"))
        await engine.delete_secret(OWNER, "later")
        assert engine.list_secrets(OWNER) == []
        with pytest.raises(InvalidSpec, match="you have no secret mine:k"):
            await engine.create_session(OWNER, spec)


async def test_a_workspace_whose_deletion_is_cancelled_is_gone_everywhere(
    runtime: Runtime, restartable: RestartableEngine
) -> None:
    async with restartable.open() as engine:
        view = await engine.create_session(OWNER, SessionSpec(runtime=runtime, tenant="project"))
        await engine.destroy_session(OWNER, view.session_id)
        is_asked, may_go_on = asyncio.Event(), asyncio.Event()

        async def hold(write: Write) -> None:
            restartable.at_writing = usual
            is_asked.set()
            await may_go_on.wait()
            await write()

        usual, restartable.at_writing = restartable.at_writing, hold
        deleting = asyncio.ensure_future(engine.delete_workspace(OWNER, "project"))
        await is_asked.wait()
        deleting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deleting
        assert [each.tenant for each in engine.list_workspaces(OWNER)] == ["project"], "the control: not yet"
        may_go_on.set()
        async with asyncio.timeout(_PATIENCE_S):
            while engine.list_workspaces(OWNER):
                await asyncio.sleep(0.01)
    async with restartable.open() as engine:
        assert engine.list_workspaces(OWNER) == []
