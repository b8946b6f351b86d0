"""Background runs: processes whose output the server writes down, so that anybody may come back for it later.

A byte is acknowledged to the sandbox only after it is in a file; a server that dies goes on where the files end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from k8e.engine.commands import Commands
from k8e.engine.process import Item, Process
from k8e.engine.process_stream import STDERR, STDOUT, Output, lost
from k8e.engine.recorded_output import OutputBudget, RecordedOutput
from k8e.engine.records import RUNS, RunRecord
from k8e.engine.session import Session
from k8e.engine.sessions import Sessions
from k8e.engine.settings import KeptLimits
from k8e.engine.store import Store
from k8e.errors import Conflict, Exhausted, K8eError, NotFound, StoreFailed
from k8e.model import Command, Denial, Outcome, OwnerId, RunId, SessionId, Status
from k8e.random_ids import new_id
from k8e.tasks import Tasks

__all__ = ["Run", "RunStream", "RunView", "Runs"]

_log = logging.getLogger(__name__)

_COMMAND_CHARS: Final = 200


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


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A process and where its output is written."""

    process: Process
    output: RecordedOutput

    @property
    def run_id(self) -> RunId:
        return RunId(self.process.id)

    @property
    def session(self) -> Session:
        return self.process.session

    def view(self, *, output_bytes: int) -> RunView:
        """`output_bytes` of each stream from its beginning, and of those no more than the last that fit an answer."""
        process, outcome = self.process, self.process.outcome
        return RunView(
            run_id=self.run_id,
            session_id=self.session.session_id,
            status=outcome.status if outcome else Status.RUNNING,
            stdout=self.output.view(STDOUT, output_bytes),
            stderr=self.output.view(STDERR, output_bytes),
            outcome=outcome,
            truncated=self.output.exceeds(output_bytes),
            duration_ms=outcome.duration_ms if outcome else process.age_ms,
            started_at=process.started_at,
            command=process.title,
            egress_denied=process.denied,
        )

    def record(self, outcome: Outcome | None = None) -> RunRecord:
        """As it is written down, with an end that is not told yet."""
        process = self.process
        return RunRecord(
            run_id=self.run_id,
            owner=self.session.owner,
            session_id=self.session.session_id,
            started_at=process.started_at,
            command=process.title,
            truncated=self.output.truncated,
            outcome=outcome or process.outcome,
            denied=process.denied,
        )


class RunStream:
    """A run as one follower reads it: output, then the outcome, and by then what else is known of its end.

    It holds the run itself: one that ended with its session is in no table any more.
    """

    def __init__(self, run: Run, offsets: Mapping[int, int]) -> None:
        self._run = run
        self._offsets = offsets
        self._is_past_bound = False

    @property
    def truncated(self) -> bool:
        return self._run.output.truncated or self._is_past_bound

    @property
    def denied(self) -> tuple[Denial, ...]:
        return self._run.process.denied

    async def __aiter__(self) -> AsyncIterator[Item]:
        bound = self._run.session.spec.limits.output_bytes
        self._is_past_bound = any(at > bound for at in self._offsets.values())
        async for item in self._run.process.follow(self._offsets):
            if isinstance(item, Output):
                self._is_past_bound = self._is_past_bound or item.end > bound
            yield item


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
        self._budget = OutputBudget(kept, sessions.files, tasks)
        self._by_id: dict[RunId, Run] = {}
        self._by_session: dict[Session, dict[RunId, Run]] = {}
        """Oldest first."""

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
        run = self._new(session, RunId(new_id("run")), command=short)
        # From now on, or many that are started at once would each find room.
        session.runs += 1
        try:
            await self._begin(run, command)
        except BaseException:
            self._undo(run)
            raise
        # Answered only when it runs: what a caller has been told of survives our death.
        await run.process.begun.wait()
        return run

    async def _begin(self, run: Run, command: Command) -> None:
        process, session = run.process, run.session
        # Written down first: a crash here is a run that never started, not a command that nobody knows.
        await self._store.commit(RUNS.put(run.record()))
        await self._commands.start(process, command, timeout_s=command.timeout_s or 0.0)
        if process.outcome is not None:
            # Its session has ended meanwhile, and there is no place any more for what it says.
            await process.close()
            raise session.lost()
        self._keep(run)

    def _undo(self, run: Run) -> None:
        """Nothing is left of a run that never began."""
        run.session.runs -= 1
        self._part(run, "it could not be started")
        # Not waited for: whoever asked may be gone. It comes after what wrote the run down, whether that is through or not.
        self._store.post(RUNS.delete(*RUNS.key(run.record())))
        self._budget.remove_files(run.output)

    def find(self, owner: OwnerId, run_id: str) -> Run:
        """The caller's own run. Raises: NotFound."""
        run = self._by_id.get(RunId(run_id))
        if run is None or run.session.owner != owner:
            raise NotFound("run", run_id)
        return run

    def of(self, session: Session) -> list[Run]:
        return list(self._by_session.get(session, {}).values())

    async def resume(self, session: Session, record: RunRecord) -> None:
        """Take back a run after a restart, from where its files end."""
        run = self._new(
            session,
            record.run_id,
            started_at=record.started_at,
            command=record.command,
            truncated=record.truncated,
            has_files=True,
        )
        run.process.denied = record.denied
        if record.outcome is not None:
            run.process.end(record.outcome)
            self._settle(run)
            return
        try:
            await self._commands.attach(run.process, run.output.offsets(), is_patient=True)
        except K8eError as error:
            await self._end(run, lost(str(error), duration_ms=run.process.age_ms))
        else:
            session.runs += 1
            self._keep(run)

    async def kill(self, run: Run, signal: int) -> None:
        """Signal it; 9 ends everything it started. Raises: Conflict when it is already over."""
        if not await run.process.signal(signal):
            raise Conflict(f"run {run.run_id} has already ended")

    def drop(self, session: Session) -> None:
        """The session ends: whoever follows a run hears that it was killed."""
        for run in self.of(session):
            self._part(run, "the session ended")

    def _part(self, run: Run, why: str) -> None:
        """It is no longer ours: whoever waits for it hears why, unless it has ended by itself."""
        run.process.stop(lost(why, duration_ms=run.process.age_ms))
        self._leave(run)

    def _new(
        self,
        session: Session,
        run_id: RunId,
        *,
        command: str,
        started_at: float | None = None,
        truncated: bool = False,
        has_files: bool = False,
    ) -> Run:
        def cut() -> None:
            self._store.post(RUNS.replace(run.record()))

        output = RecordedOutput(
            self._sessions.place(session) / run_id,
            session=session,
            budget=self._budget,
            truncated=truncated,
            has_files=has_files,
            on_cut=cut,
        )
        process = Process(session, run_id, self._tasks, title=command, started_at=started_at, output=output)
        run = Run(process, output)
        self._by_id[run_id] = run
        self._by_session.setdefault(session, {})[run_id] = run
        self._budget.register(output)
        return run

    def _keep(self, run: Run) -> None:
        session = run.session

        async def ended(outcome: Outcome) -> bool:
            return await self._end(run, outcome)

        def afterwards() -> None:
            session.runs -= 1

        run.process.keep_reading(ended, afterwards=afterwards)

    async def _end(self, run: Run, outcome: Outcome) -> bool:
        """The end of a run, written down before anybody hears of it; False when it could not be."""
        is_durable = await self._write_end(run, outcome)
        run.process.end(outcome)
        self._settle(run)
        return is_durable

    def _settle(self, run: Run) -> None:
        """It has ended: from now on its output goes when room is needed, and it itself when there are too many."""
        if run.run_id in self._by_id:
            self._budget.settle(run.output)
            self._forget_oldest(run.session)

    def _forget_oldest(self, session: Session) -> None:
        """Of runs that have ended, the session keeps only so many."""
        ended = [run for run in self.of(session) if run.process.outcome is not None]
        for run in ended[: -self._kept.runs_per_session]:
            self._leave(run)
            self._budget.remove_files(run.output)
            self._store.post(RUNS.delete(*RUNS.key(run.record())))

    def _leave(self, run: Run) -> None:
        if self._by_id.pop(run.run_id, None) is None:
            return
        self._budget.unregister(run.output)
        del self._by_session[run.session][run.run_id]
        if not self._by_session[run.session]:
            del self._by_session[run.session]

    async def _write_end(self, run: Run, outcome: Outcome) -> bool:
        try:
            await self._store.commit_retrying(RUNS.replace(run.record(outcome)))
        except StoreFailed:
            # What is true stays true: this server tells it from memory, and the next one hears it from the sandbox.
            _log.exception("the end of a run was not written down", extra={"run": run.run_id})
            return False
        return True
