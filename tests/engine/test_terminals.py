"""Terminals as the engine keeps them."""

from __future__ import annotations

import asyncio
import signal

import pytest

from k8e.errors import Conflict, NotFound
from k8e.model import Runtime, SandboxId, TerminalSize
from k8e.wire.aio import Credentials, Link, RemoteError
from tests.support.bare_machine import BareMachine
from tests.support.cells import OWNER, open_cell
from tests.support.restartable_engine import OwnSandboxes, RestartableEngine

pytestmark = pytest.mark.anyio


class _Listening(OwnSandboxes):
    """Keeps the last link to an agent: there is one at a time, so whoever has something to say there says it on that."""

    link: Link

    async def dial(self, sandbox: SandboxId, credentials: Credentials) -> Link:
        self.link = await self._shared.dial(sandbox, credentials)
        return self.link

    async def forget(self, terminal_id: str) -> None:
        """The process is gone from the list a moment before the agent has heard that, and until then it refuses."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.link.call("forget", {"id": terminal_id})
                except RemoteError as error:
                    if error.code != "conflict":
                        raise
                else:
                    return


async def test_one_that_has_ended_unseen_can_still_be_closed(
    runtime: Runtime, restartable: RestartableEngine, engine_machine: BareMachine
) -> None:
    restartable.machine = listening = _Listening(engine_machine)
    async with restartable.open() as engine, open_cell(engine, runtime) as cell:
        # Its viewer stands still, so its last output waits in the sandbox, and its end behind that.
        view = await engine.create_terminal(OWNER, cell.id, argv=["/bin/sh", "-c", "head -c 1100000 /dev/zero"])
        shown = engine.open_terminal(OWNER, view.terminal_id)
        await anext(shown)
        async with asyncio.timeout(60):
            while any(each.pid == view.pid for each in await engine.processes(OWNER, cell.id)):
                await asyncio.sleep(0.05)
        # As it is for a moment after every end: the sandbox has forgotten it, and the engine has not yet heard why.
        await listening.forget(view.terminal_id)
        await engine.write_terminal(OWNER, view.terminal_id, b"")  # the control: refused as soon as it has heard
        assert await engine.foreground(OWNER, view.terminal_id) == (-1, False)
        with pytest.raises(Conflict, match="has ended"):
            await engine.signal_terminal(OWNER, view.terminal_id, signal.SIGINT)
        with pytest.raises(Conflict, match="has ended"):
            await engine.resize_terminal(OWNER, view.terminal_id, TerminalSize(rows=10, cols=10))
        await engine.destroy_terminal(OWNER, view.terminal_id, grace_s=60.0)
        with pytest.raises(NotFound):
            await engine.foreground(OWNER, view.terminal_id)
