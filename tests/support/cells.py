"""A session as tests like to hold it, on the real engine and the real kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from k8e.engine.engine import Engine
from k8e.model import Argv, Code, Command, ExecResult, Language, OwnerId, Runtime, SessionSpec, Shell

__all__ = ["OWNER", "Cell", "CellFactory", "chunks", "open_cell"]

OWNER = OwnerId("uid:0")


@dataclass(frozen=True, slots=True)
class Cell:
    """One session of OWNER."""

    engine: Engine
    id: str

    async def sh(self, text: str, **options: Any) -> ExecResult:
        return await self.exec(Command(what=Shell(text)), **options)

    async def argv(self, *argv: str, **options: Any) -> ExecResult:
        return await self.exec(Command(what=Argv(argv)), **options)

    async def py(self, code: str, **options: Any) -> ExecResult:
        return await self.exec(Command(what=Code(Language.PYTHON, code)), **options)

    async def exec(self, command: Command, *, stdin: bytes = b"", **options: Any) -> ExecResult:
        return await self.engine.exec(OWNER, self.id, replace(command, **options), stdin=stdin)

    async def write(self, path: str, data: bytes, **options: Any) -> int:
        return await self.engine.write_file(OWNER, self.id, path, chunks(data), **options)

    async def read(self, path: str) -> bytes:
        return b"".join([chunk async for chunk in self.engine.read_file(OWNER, self.id, path)])


CellFactory: TypeAlias = Callable[..., AbstractAsyncContextManager[Cell]]


@asynccontextmanager
async def open_cell(engine: Engine, runtime: Runtime, **options: Any) -> AsyncIterator[Cell]:
    """A session for the length of a block."""
    spec = replace(SessionSpec(runtime=runtime), **options)
    view = await engine.create_session(OWNER, spec)
    try:
        yield Cell(engine, view.session_id)
    finally:
        if any(known.session_id == view.session_id for known in engine.list_sessions(OWNER)):
            await engine.destroy_session(OWNER, view.session_id)


async def chunks(data: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
