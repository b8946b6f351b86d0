"""Doing what a message asks for, in its context's session; what comes of it goes into the task's record.

The one who asked may be gone meanwhile. Cancelling an errand leaves the command's stream, which kills the command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from a2a.types import Artifact, TaskState

from k8e.a2a.asks import Ask, Program, Upload
from k8e.a2a.contexts import Contexts, Place
from k8e.a2a.harvest import FILE_BYTES, Harvest, Seen, file_artifact, seen
from k8e.a2a.records import Record
from k8e.a2a.results import is_success, result_artifact, told
from k8e.a2a.vigil import Vigil
from k8e.client.aio import AsyncSandboxClient
from k8e.client.errors import NotFound, SandboxError, SandboxLost
from k8e.client.values import Chunk, Exit

__all__ = ["Errand"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Errand:
    """One ask of one owner."""

    client: AsyncSandboxClient
    contexts: Contexts
    tasks: asyncio.TaskGroup
    record: Record
    ask: Ask
    has_begun: bool = False
    """Whether a program has run: from then on nothing may be done twice."""
    is_recreated: bool = False
    """Whether the context had a session that is gone, and with it what was in there."""

    async def run(self) -> None:
        """Never raises but for being cancelled: how it went is in the record."""
        record = self.record
        record.become(TaskState.TASK_STATE_WORKING)
        try:
            await self._done()
        except asyncio.CancelledError:
            record.become(TaskState.TASK_STATE_CANCELED, "canceled; its command is killed")
            raise
        except SandboxError as error:
            record.become(TaskState.TASK_STATE_FAILED, str(error))
        except Exception:  # noqa: BLE001 - the edge: nobody else waits for this
            _log.exception("a task failed for a reason of ours", extra={"task": record.task_id})
            record.become(TaskState.TASK_STATE_FAILED, "an error of this agent's own; its log says more")

    async def _done(self) -> None:
        record = self.record
        place = await self.contexts.enter(self.client, record.owner, record.context_id)
        try:
            await self._done_in(place)
        except (NotFound, SandboxLost) as error:
            if self.has_begun or not await self._is_gone(place, error):
                raise
            # Nothing has run, and nothing is lost that was not lost before.
            self.is_recreated = True
            place = await self.contexts.enter(self.client, record.owner, record.context_id, gone=place)
            await self._done_in(place)

    async def _is_gone(self, place: Place, error: SandboxError) -> bool:
        """Whether it is the session that was not found, and not something in it."""
        if isinstance(error, SandboxLost):
            return True
        try:
            await self.client.get(place.session_id)
        except NotFound:
            return True
        return False

    @contextmanager
    def _watched(self, session_id: str, wish: Program | Upload) -> Iterator[None]:
        """While the call waits for a person, the caller is told."""
        record = self.record
        vigil = Vigil(client=self.client, record=record, session_id=session_id, wish=wish, printed=record.printed())
        watching = self.tasks.create_task(vigil.keep(), name=f"gates of {record.task_id}")
        try:
            yield
        finally:
            watching.cancel()
            vigil.end()

    async def _done_in(self, place: Place) -> None:
        before = await self._prepared(place)
        self.has_begun = not self.ask.programs
        ends: list[Exit] = []
        for program in self.ask.programs:
            with self._watched(place.session_id, program):
                ends.append(await self._ran(place.session_id, program))
            if not is_success(ends[-1]):
                break
        last = ends[-1] if ends else None
        harvest = await self._harvested(place.session_id, before) if last else Harvest()
        missing = await self._given_back(place.session_id)
        self.record.attach(
            result_artifact(
                last,
                session_id=place.session_id,
                is_recreated=self.is_recreated,
                is_cut=self.record.is_cut,
                uploads=[upload.path for upload in self.ask.uploads],
                harvest=harvest,
                steps=(len(ends), len(self.ask.programs)),
            )
        )
        good = not missing and (last is None or is_success(last))
        state = TaskState.TASK_STATE_COMPLETED if good else TaskState.TASK_STATE_FAILED
        self.record.become(
            state, missing or told(last, timeout_s=self.ask.programs[len(ends) - 1].timeout_s if ends else 0.0)
        )

    async def _prepared(self, place: Place) -> Mapping[str, Seen]:
        """Write the files that came along; what the workspace holds before anything runs."""
        for upload in self.ask.uploads:
            with self._watched(place.session_id, upload):
                await self.client.write_file(place.session_id, upload.path, upload.data)
        if not self.ask.programs:
            # Nothing else would notice that the session is gone before its files are missed.
            await self.client.get(place.session_id)
            return {}
        if place.is_new and not self.ask.uploads:
            return {}
        return seen(await self.client.list_files(place.session_id))

    async def _ran(self, session_id: str, program: Program) -> Exit:
        end: Exit | None = None
        async for item in self._output(session_id, program):
            self.has_begun = True
            if isinstance(item, Chunk):
                self.record.print(item.stream, item.data)
            else:
                end = item
        if end is None:
            raise AssertionError("the server ends every stream with an exit")
        return end

    def _output(self, session_id: str, program: Program) -> AsyncIterator[Chunk | Exit]:
        if program.language == "sh":
            return self.client.exec_output(
                session_id, program.code, program.timeout_s, workdir=program.workdir, env=program.env
            )
        return self.client.run_output(
            program.code,
            program.language,
            program.timeout_s,
            session_id=session_id,
            workdir=program.workdir,
            env=program.env,
        )

    async def _harvested(self, session_id: str, before: Mapping[str, Seen]) -> Harvest:
        """Attach what the programs have written. How they ended is told also where that is out of reach."""
        try:
            harvest = Harvest.of(before, await self.client.list_files(session_id))
            for path in harvest.attached:
                if (artifact := await self._file(session_id, path)) is not None:
                    self.record.attach(artifact)
        except SandboxError as error:
            return Harvest(trouble=str(error))
        return harvest

    async def _given_back(self, session_id: str) -> str:
        """Attach the files that were asked for; what is wrong with those that could not be."""
        for path in self.ask.reads:
            try:
                artifact = await self._file(session_id, path)
            except NotFound as error:
                return str(error)
            if artifact is None:
                return f"{path} has more than {FILE_BYTES} bytes: have a program make it smaller, or read it in parts"
            self.record.attach(artifact)
        return ""

    async def _file(self, session_id: str, path: str) -> Artifact | None:
        """A file as an artifact, or None when it has become too large."""
        data = await self.client.read_bytes(session_id, path, length=FILE_BYTES + 1)
        return file_artifact(path, data) if len(data) <= FILE_BYTES else None
