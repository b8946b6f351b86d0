"""Background runs: commands whose output the server writes down, so that anybody may come back for it later.

A byte is acknowledged to the sandbox only after it is in a file; a server that dies goes on where the files
end. Past the bound output is dropped and the run says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from k8e.engine.commands import Commands, ask
from k8e.engine.execs import STDERR, STDOUT, ExecStream, Output
from k8e.engine.ids import new_id
from k8e.engine.session import Session
from k8e.engine.sessions import Sessions
from k8e.engine.store import Change, Store
from k8e.engine.tasks import Tasks
from k8e.errors import Conflict, Exhausted, K8eError, NotFound, StoreFailed
from k8e.model import Command, Denial, Outcome, OwnerId, Reason, RunId, SessionId, Status

__all__ = ["Run", "RunStream", "RunView", "Runs"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_CHANNELS = (STDOUT, STDERR)
_END_WRITTEN_AFTER_S: Final = (0.0, 0.1, 0.5, 2.0, 5.0)
"""The pause before each try: a database is locked, or a disk full, often only for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    run_id: RunId
    session_id: SessionId
    status: Status
    stdout: bytes
    stderr: bytes
    outcome: Outcome | None
    truncated: bool
    duration_ms: int
    egress_denied: tuple[Denial, ...] = ()


class Run:
    """One background run; `directory` holds one file per channel."""

    def __init__(self, run_id: RunId, session: Session, directory: Path, *, started_at: float) -> None:
        self.id = run_id
        self.session = session
        self.started_at = started_at
        self.outcome: Outcome | None = None
        self.denied: tuple[Denial, ...] = ()
        self.truncated = False
        self._can_keep = True
        self.task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        self.grown = asyncio.Event()
        """Set, and replaced, whenever there is more to read or the end to hear of."""
        self._directory = directory

    def path(self, channel: int) -> Path:
        return self._directory / str(channel)

    def offsets(self) -> dict[int, int]:
        """Where each file ends; a truncated one no longer says where the stream is."""
        sizes = {channel: self._size(channel) for channel in _CHANNELS}
        limit = self.session.spec.limits.run_output_bytes
        return {channel: size for channel, size in sizes.items() if size < limit}

    def write(self, output: Output) -> None:
        """Append what fits; called in order, once per byte."""
        room = self.session.spec.limits.run_output_bytes - self._size(output.channel)
        if room < len(output.payload):
            self.truncated = True
        if room > 0 and self._can_keep:
            self._append(output.channel, output.payload[:room])
        self.notify()

    def _append(self, channel: int, data: bytes) -> None:
        try:
            with self.path(channel).open("ab") as file:
                file.write(data)
        except OSError as error:
            # The command goes on without; what came later must not stand where this is missing.
            self._can_keep, self.truncated = False, True
            _log.warning("cannot keep a run's output", extra={"run": self.id, "reason": str(error)})

    def notify(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()

    def read(self, channel: int, offset: int, length: int) -> bytes:
        with contextlib.suppress(FileNotFoundError), self.path(channel).open("rb") as file:
            return os.pread(file.fileno(), length, offset)
        return b""

    def follow(self, offsets: Mapping[int, int]) -> RunStream:
        """Everything from the offsets on, then the outcome."""
        return RunStream(self, offsets)

    def view(self, *, output_bytes: int) -> RunView:
        outcome = self.outcome
        sizes = [self._size(channel) for channel in _CHANNELS]
        return RunView(
            run_id=self.id,
            session_id=self.session.session_id,
            status=outcome.status if outcome else Status.RUNNING,
            stdout=self.read(STDOUT, 0, output_bytes),
            stderr=self.read(STDERR, 0, output_bytes),
            outcome=outcome,
            truncated=self.truncated or any(size > output_bytes for size in sizes),
            duration_ms=outcome.duration_ms if outcome else int((time.time() - self.started_at) * 1000),
            egress_denied=self.denied,
        )

    def remove(self) -> None:
        """Everything that was written of it."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _size(self, channel: int) -> int:
        try:
            return self.path(channel).stat().st_size
        except FileNotFoundError:
            return 0


class RunStream:
    """A run as one follower reads it: output, then the outcome, and by then what else is known of its end.

    It knows so by itself: a run that ended with its session can be asked nothing more.
    """

    def __init__(self, run: Run, offsets: Mapping[int, int]) -> None:
        self._run = run
        self._at = {channel: offsets.get(channel, 0) for channel in _CHANNELS}

    @property
    def truncated(self) -> bool:
        bound = self._run.session.spec.limits.output_bytes
        return self._run.truncated or any(at > bound for at in self._at.values())

    @property
    def denied(self) -> tuple[Denial, ...]:
        return self._run.denied

    async def __aiter__(self) -> AsyncIterator[Output | Outcome]:
        while True:
            grown, outcome = self._run.grown, self._run.outcome
            for channel in _CHANNELS:
                while payload := self._run.read(channel, self._at[channel], _CHUNK_BYTES):
                    yield Output(channel, self._at[channel], payload)
                    self._at[channel] += len(payload)
            if outcome is not None:
                yield outcome
                return
            await grown.wait()


class Runs:
    def __init__(self, store: Store, sessions: Sessions, commands: Commands, tasks: Tasks, *, per_session: int) -> None:
        self._store = store
        self._sessions = sessions
        self._commands = commands
        self._tasks = tasks
        self._per_session = per_session
        self._by_id: dict[RunId, Run] = {}

    async def start(self, session: Session, command: Command) -> Run:
        """Start a command that goes on when the caller leaves; without a time limit of its own it has none.

        Raises: SandboxLost, SandboxFailed, InvalidSpec, Exhausted; then there is no such run.
        """
        session.live_box()
        if session.runs >= self._per_session:
            raise Exhausted(
                f"session {session.session_id} already has {session.runs} background runs: kill one or wait for it"
            )
        run = self._new(session, RunId(new_id("run")), started_at=time.time())
        # From now on, or many that are started at once would each find room.
        session.runs += 1
        try:
            await self._begin(run, command)
        except BaseException:
            self._undo(run)
            raise
        # Answered only when it runs: what a caller has been told of survives our death.
        await run.begun.wait()
        return run

    async def _begin(self, run: Run, command: Command) -> None:
        session = run.session
        # Written down first: a crash here is a run that never started, not a command that nobody knows.
        await self._store.commit(
            Change(
                "INSERT INTO runs VALUES (?,?,?,?,?,?)",
                (run.id, session.owner, session.session_id, run.started_at, "", 0),
            )
        )
        stream = await self._commands.start(session, run.id, command, timeout_s=command.timeout_s or 0.0)
        if run.outcome is not None:
            # Its session has ended meanwhile, and there is no place any more for what it says.
            await stream.close()
            raise session.lost()
        self._follow(run, stream)

    def _undo(self, run: Run) -> None:
        """Nothing is left of a run that never began."""
        run.session.runs -= 1
        self._part(run, "it could not be started")
        # Not waited for: whoever asked may be gone. It comes after what wrote the run down, whether that is through or not.
        self._store.post(Change("DELETE FROM runs WHERE id=?", (run.id,)))
        run.remove()

    def find(self, owner: OwnerId, run_id: str) -> Run:
        """The caller's own run. Raises: NotFound."""
        run = self._by_id.get(RunId(run_id))
        if run is None or run.session.owner != owner:
            raise NotFound("run", run_id)
        return run

    def of(self, session: Session) -> list[Run]:
        return [run for run in self._by_id.values() if run.session is session]

    async def resume(self, session: Session, row: sqlite3.Row) -> None:
        """Take back a run after a restart, from where its files end."""
        run = self._new(session, RunId(row["id"]), started_at=row["started_at"])
        run.truncated = bool(row["truncated"])
        if row["outcome"]:
            run.outcome, run.denied = _end_from_json(row["outcome"])
            return
        try:
            stream = await self._commands.attach(session, run.id, run.offsets())
        except K8eError as error:
            await self._finish(run, _lost(run, str(error)))
        else:
            session.runs += 1
            self._follow(run, stream)

    async def kill(self, run: Run, signal: int) -> None:
        """Signal it; 9 ends everything it started. Raises: Conflict when it is already over."""
        has_ended = Conflict(f"run {run.id} has already ended")
        if run.outcome is not None:
            raise has_ended
        try:
            await ask(run.session, "kill", {"id": run.id, "signal": signal}, kind="run", name=run.id)
        except NotFound as error:
            # The sandbox knows the end before we have written it down.
            raise has_ended from error

    def drop(self, session: Session) -> None:
        """The session ends: whoever follows a run hears that it was killed."""
        for run in self.of(session):
            if run.task is not None:
                run.task.cancel()
            self._part(run, "the session ended")

    def _part(self, run: Run, why: str) -> None:
        """It is no longer ours: whoever waits for it hears why, unless it has ended by itself."""
        if run.outcome is None:
            run.outcome = _lost(run, why)
            run.notify()
        run.begun.set()
        self._by_id.pop(run.id, None)

    def _new(self, session: Session, run_id: RunId, *, started_at: float) -> Run:
        directory = self._sessions.directory(session) / run_id
        directory.mkdir(exist_ok=True)
        run = self._by_id[run_id] = Run(run_id, session, directory, started_at=started_at)
        return run

    def _follow(self, run: Run, stream: ExecStream) -> None:
        run.task = self._tasks.start(self._pump(run, stream), name=f"run {run.id}")

    async def _pump(self, run: Run, stream: ExecStream) -> None:
        try:
            outcome = await self._collect(run, stream)
            run.denied = stream.denied
            if await self._finish(run, outcome):
                # Until here the sandbox was the only other place that knew the end.
                stream.forget()
        finally:
            run.begun.set()
            run.session.runs -= 1

    async def _collect(self, run: Run, stream: ExecStream) -> Outcome:
        """Write down all that it says, until its end or ours."""
        try:
            await stream.started()
            run.begun.set()
            async for item in stream:
                if isinstance(item, Outcome):
                    return item
                run.write(item)
        except K8eError as error:
            return _lost(run, str(error))
        return _lost(run, "it ended without an outcome")

    async def _finish(self, run: Run, outcome: Outcome) -> bool:
        """The end of a run, written down before anybody hears of it; False when it could not be."""
        is_durable = await self._write_end(run, outcome)
        run.outcome = outcome
        run.notify()
        return is_durable

    async def _write_end(self, run: Run, outcome: Outcome) -> bool:
        change = Change(
            "UPDATE runs SET outcome=?, truncated=? WHERE id=?",
            (_end_to_json(outcome, run.denied), int(run.truncated), run.id),
        )
        for pause_s in _END_WRITTEN_AFTER_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(StoreFailed):
                await self._store.commit(change)
                return True
        # What is true stays true: this server tells it from memory, and the next one hears it from the sandbox.
        _log.error("the end of a run was not written down", extra={"run": run.id})
        return False


def _end_to_json(outcome: Outcome, denied: tuple[Denial, ...]) -> str:
    return json.dumps({**asdict(outcome), "denied": [asdict(each) for each in denied]})


def _end_from_json(text: str) -> tuple[Outcome, tuple[Denial, ...]]:
    fields: dict[str, Any] = json.loads(text)
    denied = tuple(Denial(**each) for each in fields.pop("denied", ()))
    return Outcome(**{**fields, "status": Status(fields["status"]), "reason": Reason(fields["reason"])}), denied


def _lost(run: Run, detail: str) -> Outcome:
    return Outcome(
        status=Status.FAILED,
        exit_code=137,
        reason=Reason.SANDBOX_LOST,
        detail=detail,
        duration_ms=int((time.time() - run.started_at) * 1000),
    )
