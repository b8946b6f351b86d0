"""An engine of a test's own that is closed and opened again, as a server is: what the next one knows was written down.

Its sandboxes are made where those of the shared engine are, so it needs no image, no probe and no daemon of its own. It
keeps no warm ones: what is made is made for the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from k8e.engine.engine import Engine
from k8e.engine.settings import EngineSettings
from k8e.engine.store import Change, Store
from k8e.identity.sealing import FileSealer
from k8e.model import Decision, SandboxId, Template
from k8e.substrate.machine import Machine
from k8e.wire.aio import Credentials
from tests.support.cells import OWNER, Cell
from tests.support.substrates import over

__all__ = ["AtWriting", "OwnSandboxes", "RestartableEngine", "Write", "restartable"]

Write: TypeAlias = Callable[[], Awaitable[None]]
AtWriting: TypeAlias = Callable[[Write], Awaitable[None]]
"""Called whenever the engine is about to write something down; it does so with what it is given, or not at all."""


class OwnSandboxes:
    """A machine as one of several engines sees it: what the others have there is not its to find, or to remove."""

    def __init__(self, shared: Machine) -> None:
        self._shared = shared
        self.made: list[SandboxId] = []
        """All of them, also those that are gone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    async def create(self, sandbox: SandboxId, template: Template, credentials: Credentials) -> None:
        self.made.append(sandbox)
        await self._shared.create(sandbox, template, credentials)

    async def survivors(self) -> frozenset[SandboxId]:
        return await self._shared.survivors() & frozenset(self.made)

    async def warm(self) -> Mapping[SandboxId, Template]:
        return {sandbox: template for sandbox, template in (await self._shared.warm()).items() if sandbox in self.made}

    async def decisions(self) -> AsyncIterator[Decision]:
        """None: they have one consumer, and that is the shared engine."""
        await asyncio.Event().wait()
        for decision in list[Decision]():
            yield decision

    async def settle_decisions(self) -> None:
        return

    async def clear(self) -> None:
        for sandbox in await self.survivors():
            await self._shared.destroy(sandbox)


class RestartableEngine:
    """One data directory, and whichever engine is open on it now."""

    def __init__(self, directory: Path, machine: OwnSandboxes) -> None:
        self.directory = directory
        self.machine = machine
        self.at_writing: AtWriting = _written
        """For tests that need a certain moment, which they know by what the engine shows of itself."""

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[Engine]:
        """The next of them, with everything that the last one has left; these settings are its own."""
        self.directory.mkdir(exist_ok=True)
        chosen = EngineSettings(data_dir=self.directory, **settings)
        sealer = FileSealer(self.directory / "secrets.key")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("k8e.engine.engine.Store", lambda path: _Watched(path, self))
            async with Engine.open(chosen, over(cast("Machine", self.machine)), sealer) as engine:
                yield engine

    def kept(self, cell: Cell) -> Path:
        """Where its engine keeps what a session's commands have said."""
        sandbox = cell.engine.get_session(OWNER, cell.id).sandbox
        assert sandbox is not None
        return self.directory / "sessions" / sandbox


class _Watched(Store):
    """A store that tells when something is about to be written."""

    def __init__(self, path: Path, restartable: RestartableEngine) -> None:
        super().__init__(path)
        self._restartable = restartable

    async def commit(self, *changes: Change) -> int:
        write, versions = super().commit, list[int]()

        async def written() -> None:
            versions.append(await write(*changes))

        await self._restartable.at_writing(written)
        return versions[-1] if versions else 0


async def _written(write: Write) -> None:
    await write()


@pytest.fixture
async def restartable(engine: Engine, engine_machine: Machine, data_dir: Path) -> AsyncIterator[RestartableEngine]:
    """Beside `engine`, which must be there first: when it begins, what it does not know is removed."""
    restartable = RestartableEngine(data_dir / "engine", OwnSandboxes(engine_machine))
    yield restartable
    await restartable.machine.clear()
