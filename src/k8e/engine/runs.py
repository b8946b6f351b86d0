"""Background runs: commands whose output the server writes down, so that anybody may come back for it later.

A byte is acknowledged to the sandbox only after it is in a file; a server that dies goes on where the files
end. Files are written off the event loop, a run's one after the other. Past the bound output is dropped and the run says so. What runs leave on disk is bounded for each session and each
owner: the oldest that have ended lose their output first, then what still comes is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from k8e.engine.commands import Commands, ask
from k8e.engine.execs import STDERR, STDOUT, ExecStream, Output
from k8e.engine.session import Session
from k8e.engine.sessions import Sessions
from k8e.engine.settings import KeptLimits
from k8e.engine.store import Change, Store
from k8e.errors import Conflict, Exhausted, K8eError, NotFound, StoreFailed
from k8e.model import MIB, Command, Denial, Outcome, OwnerId, Reason, RunId, SessionId, Status
from k8e.random_ids import new_id
from k8e.tasks import Tasks

__all__ = ["Run", "RunStream", "RunView", "Runs"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_POLLED_BYTES: Final = 8 * MIB
"""Of each stream in one view; whoever wants more follows the run."""
_COMMAND_CHARS: Final = 200
_CHANNELS = (STDOUT, STDERR)


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
    started_at: float
    command: str
    """In short."""
    egress_denied: tuple[Denial, ...] = ()


class Run:
    """One background run; `directory` holds one file per channel, and is made when there is something to write."""

    def __init__(self, run_id: RunId, session: Session, directory: Path, *, started_at: float, command: str) -> None:
        self.id = run_id
        self.session = session
        self.started_at = started_at
        self.command = command
        self.outcome: Outcome | None = None
        self.denied: tuple[Denial, ...] = ()
        self.truncated = False
        self._kept_whole = set(_CHANNELS)
        """Channels of which nothing is missing so far, and so may go on."""
        self.task: asyncio.Task[None] | None = None
        self.begun = asyncio.Event()
        self.grown = asyncio.Event()
        """Set, and replaced, whenever there is more to read or the end to hear of."""
        self._directory = directory
        self._sizes = {channel: _size_of(self.path(channel)) for channel in _CHANNELS}

    @property
    def kept_bytes(self) -> int:
        """What it has on disk."""
        return sum(self._sizes.values())

    def path(self, channel: int) -> Path:
        return self._directory / str(channel)

    def offsets(self) -> dict[int, int]:
        """Where each file ends; a truncated one no longer says where the stream is."""
        limit = self.session.spec.limits.run_output_bytes
        return {channel: size for channel, size in self._sizes.items() if size < limit}

    def cut(self, channel: int) -> None:
        """From now on nothing more of it is written: what comes later must not stand where something is missing."""
        self._kept_whole.discard(channel)
        self.truncated = True

    def wants(self, output: Output) -> int:
        """How much of this it would write down, if there were room for it on the host."""
        size = self._sizes[output.channel]
        if output.channel not in self._kept_whole or output.offset != size:
            return 0
        return max(0, min(self.session.spec.limits.run_output_bytes - size, len(output.payload)))

    def take(self, output: Output, room: int) -> bytes:
        """What fits of it, which counts as kept from here on; called in order, once per byte."""
        wanted = self.wants(output)
        if wanted < len(output.payload):
            self.truncated = True
        if wanted > room or output.offset != self._sizes[output.channel]:
            self.cut(output.channel)
        taken = output.payload[: min(wanted, room)]
        self._sizes[output.channel] += len(taken)
        return taken

    def append(self, channel: int, data: bytes) -> None:
        """Blocking. Raises: OSError."""
        if not self._directory.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
        with self.path(channel).open("ab") as file:
            file.write(data)

    def go_on_without(self, channel: int, error: OSError) -> None:
        """What was taken could not be written, or only some of it."""
        self.cut(channel)
        self._sizes[channel] = _size_of(self.path(channel))
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
        """`output_bytes` of each stream from its beginning, and of those no more than the last that fit an answer."""
        outcome = self.outcome
        return RunView(
            run_id=self.id,
            session_id=self.session.session_id,
            status=outcome.status if outcome else Status.RUNNING,
            stdout=self._last(STDOUT, output_bytes),
            stderr=self._last(STDERR, output_bytes),
            outcome=outcome,
            truncated=self.truncated or any(size > min(output_bytes, _POLLED_BYTES) for size in self._sizes.values()),
            duration_ms=outcome.duration_ms if outcome else int((time.time() - self.started_at) * 1000),
            started_at=self.started_at,
            command=self.command,
            egress_denied=self.denied,
        )

    def viewed_bytes(self, output_bytes: int) -> int:
        """How much output such a view has."""
        return sum(min(size, output_bytes, _POLLED_BYTES) for size in self._sizes.values())

    def _last(self, channel: int, most: int) -> bytes:
        end = min(self._sizes[channel], most)
        begin = max(0, end - _POLLED_BYTES)
        return self.read(channel, begin, end - begin) if end else b""

    def part_with_output(self) -> None:
        """It is no longer kept; how it ended is."""
        self._sizes = dict.fromkeys(_CHANNELS, 0)
        self.truncated = True

    def remove(self) -> None:
        """Everything that was written of it. Blocking."""
        shutil.rmtree(self._directory, ignore_errors=True)


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
    def __init__(
        self, store: Store, sessions: Sessions, commands: Commands, tasks: Tasks, *, per_session: int, kept: KeptLimits
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._commands = commands
        self._tasks = tasks
        self._per_session = per_session
        self._kept = kept
        self._by_id: dict[RunId, Run] = {}
        self._by_session: dict[Session, dict[RunId, Run]] = {}
        """Oldest first."""
        self._ended: dict[OwnerId, dict[RunId, Run]] = {}
        """Those that have ended and still have output on disk, in the order of their ends."""
        self._bytes_of_session: Counter[Session] = Counter()
        self._bytes_of_owner: Counter[OwnerId] = Counter()

    async def start(self, session: Session, command: Command) -> Run:
        """Start a command that goes on when the caller leaves; without a time limit of its own it has none.

        Raises: SandboxLost, SandboxFailed, InvalidSpec, Exhausted; then there is no such run.
        """
        session.live_box()
        if session.runs >= self._per_session:
            raise Exhausted(
                f"session {session.session_id} already has {session.runs} background runs: kill one or wait for it"
            )
        short = " ".join(self._commands.title(session, command).split())[:_COMMAND_CHARS]
        run = self._new(session, RunId(new_id("run")), started_at=time.time(), command=short)
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
                "INSERT INTO runs VALUES (?,?,?,?,?,?,?)",
                (run.id, session.owner, session.session_id, run.started_at, "", 0, run.command),
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
        return list(self._by_session.get(session, {}).values())

    async def resume(self, session: Session, row: sqlite3.Row) -> None:
        """Take back a run after a restart, from where its files end."""
        run = self._new(session, RunId(row["id"]), started_at=row["started_at"], command=row["command"])
        run.truncated = bool(row["truncated"])
        if row["outcome"]:
            run.outcome, run.denied = _end_from_json(row["outcome"])
            self._settle(run)
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
        self._leave(run)

    def _new(self, session: Session, run_id: RunId, *, started_at: float, command: str) -> Run:
        directory = self._sessions.directory(session) / run_id
        run = Run(run_id, session, directory, started_at=started_at, command=command)
        self._enter(run)
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
            stream.leave_record()
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
                await self._write(run, item)
        except K8eError as error:
            # Nobody reads it any more: what still runs must not, and must not keep its session busy.
            await stream.close()
            return _lost(run, str(error))
        return _lost(run, "it ended without an outcome")

    async def _write(self, run: Run, output: Output) -> None:
        """When this returns it is in its file, as far as it is kept at all; only then may it be acknowledged."""
        session, wanted, before, was_cut = run.session, run.wants(output), run.kept_bytes, run.truncated
        if wanted > self._room(session):
            self._make_room(session, wanted)
        taken = run.take(output, self._room(session))
        # Before it is written: others that write meanwhile must not count on the same room.
        self._count(run, run.kept_bytes - before)
        if taken:
            before = run.kept_bytes
            try:
                await self._sessions.files.run(functools.partial(run.append, output.channel, taken))
            except OSError as error:
                # The command goes on without.
                run.go_on_without(output.channel, error)
                if run.id in self._by_id:
                    self._count(run, run.kept_bytes - before)
        run.notify()
        if run.truncated and not was_cut:
            self._store.post(Change("UPDATE runs SET truncated=1 WHERE id=?", (run.id,)))

    def _room(self, session: Session) -> int:
        """How much more the session's runs may keep on disk."""
        return min(self._room_of_session(session), self._room_of_owner(session.owner))

    def _room_of_session(self, session: Session) -> int:
        return max(0, self._kept.output_per_session - self._bytes_of_session[session])

    def _room_of_owner(self, owner: OwnerId) -> int:
        return max(0, self._kept.output_per_owner - self._bytes_of_owner[owner])

    def _make_room(self, session: Session, wanted: int) -> None:
        """Part with the output of runs that have ended, oldest first, as far as that makes room where it is missing."""
        for run in self.of(session):
            if self._room_of_session(session) >= wanted:
                break
            if run.outcome is not None and run.kept_bytes:
                self._part_with_output(run)
        wanted = min(wanted, self._room_of_session(session))
        for run in list(self._ended.get(session.owner, {}).values()):
            if self._room_of_owner(session.owner) >= wanted:
                break
            self._part_with_output(run)

    def _part_with_output(self, run: Run) -> None:
        self._count(run, -run.kept_bytes)
        run.part_with_output()
        self._unlist(run)
        self._tasks.start(asyncio.to_thread(run.remove), name=f"output of {run.id}")
        self._store.post(Change("UPDATE runs SET truncated=1 WHERE id=?", (run.id,)))

    def _count(self, run: Run, by: int) -> None:
        self._bytes_of_session[run.session] += by
        self._bytes_of_owner[run.session.owner] += by
        if not self._bytes_of_owner[run.session.owner]:
            del self._bytes_of_owner[run.session.owner]

    def _forget_oldest(self, session: Session) -> None:
        """Of runs that have ended, the session keeps only so many."""
        ended = [run for run in self.of(session) if run.outcome is not None]
        for run in ended[: -self._kept.runs_per_session]:
            self._leave(run)
            self._tasks.start(asyncio.to_thread(run.remove), name=f"forget {run.id}")
            self._store.post(Change("DELETE FROM runs WHERE id=?", (run.id,)))

    def _settle(self, run: Run) -> None:
        """It has ended: from now on its output goes when room is needed, and it itself when there are too many."""
        if run.id in self._by_id:
            if run.kept_bytes:
                self._ended.setdefault(run.session.owner, {})[run.id] = run
            self._forget_oldest(run.session)

    def _unlist(self, run: Run) -> None:
        """It has no output any more that could make room."""
        ended = self._ended.get(run.session.owner, {})
        ended.pop(run.id, None)
        if not ended:
            self._ended.pop(run.session.owner, None)

    def _enter(self, run: Run) -> None:
        self._by_id[run.id] = run
        self._by_session.setdefault(run.session, {})[run.id] = run
        self._count(run, run.kept_bytes)

    def _leave(self, run: Run) -> None:
        if self._by_id.pop(run.id, None) is None:
            return
        self._count(run, -run.kept_bytes)
        self._unlist(run)
        del self._by_session[run.session][run.id]
        if not self._by_session[run.session]:
            del self._by_session[run.session], self._bytes_of_session[run.session]

    async def _finish(self, run: Run, outcome: Outcome) -> bool:
        """The end of a run, written down before anybody hears of it; False when it could not be."""
        is_durable = await self._write_end(run, outcome)
        run.outcome = outcome
        run.notify()
        self._settle(run)
        return is_durable

    async def _write_end(self, run: Run, outcome: Outcome) -> bool:
        change = Change(
            "UPDATE runs SET outcome=?, truncated=? WHERE id=?",
            (_end_to_json(outcome, run.denied), int(run.truncated), run.id),
        )
        try:
            await self._store.commit_retrying(change)
        except StoreFailed:
            # What is true stays true: this server tells it from memory, and the next one hears it from the sandbox.
            _log.exception("the end of a run was not written down", extra={"run": run.id})
            return False
        return True


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


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
