"""Starting commands in sessions: the one path that foreground calls, background runs and terminals share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from k8e.byte_budget import ByteBudget, Reserve, unlimited
from k8e.capture import Capture
from k8e.engine import answers
from k8e.engine.ceilings import bounded
from k8e.engine.egress import Egress
from k8e.engine.events import EventLog
from k8e.engine.ids import check_client_id
from k8e.engine.process import Follower, Parting, Process, ProcessView, Reading, ask
from k8e.engine.process_stream import STDERR, STDOUT, ProcessStream, exec_args
from k8e.engine.questions import FoundProgram
from k8e.engine.readers import Readers
from k8e.engine.recording import Recorder, title
from k8e.engine.resumable import IN_SANDBOX_BYTES, ResumableCommands
from k8e.engine.secrets import Secrets
from k8e.engine.session import Session, Use
from k8e.engine.sessions import Sessions
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec, K8eError, SandboxFailed, SandboxUnreachable
from k8e.loop_turns import InTurns
from k8e.model import MIB, Command, Denial, ExecResult, Outcome, ProcessInfo, Reason, SandboxId
from k8e.random_ids import new_id
from k8e.tasks import Tasks

__all__ = ["Commands", "ask", "processes"]

_MAX_PROCESSES: Final = 65_536
_COMM_BYTES: Final = 256
_EXEC_ID_BYTES: Final = 256
_INPUT_PAUSE_S: Final = 0.002
_INPUT_LONGEST_PAUSE_S: Final = 0.1
_INPUT_WAIT_S: Final = 10.0
"""For a command that does not read; then the caller asks again."""
_ARGS_CHARS: Final = 4096
_PROGRAM_CHARS: Final = 256

RECORDED_PER_OWNER = 64 * MIB
RECORDED = 256 * MIB
"""Of commands that run: the beginning of their output, held for the transcript until they end."""
RESUMABLE_PER_OWNER = 64 * MIB
RESUMABLE = 256 * MIB
"""Of commands whose callers may come back after our death: the beginning of their output, in memory and on disk."""


class Commands:
    def __init__(
        self, sessions: Sessions, secrets: Secrets, egress: Egress, events: EventLog, tasks: Tasks, *, at_once: int
    ) -> None:
        self._sessions = sessions
        self._secrets = secrets
        self._egress = egress
        self._events = events
        self._tasks = tasks
        self._at_once = at_once
        self._recording = ByteBudget(per_owner=RECORDED_PER_OWNER, total=RECORDED)
        self._kept_output = ByteBudget(per_owner=RESUMABLE_PER_OWNER, total=RESUMABLE)
        self._resumable: dict[SandboxId, ResumableCommands] = {}
        self._readers: dict[Session, dict[str, Readers]] = {}
        """Of all that is being read from its sandbox, by its id."""

    async def start(
        self,
        process: Process,
        command: Command,
        *,
        timeout_s: float,
        keep_in_sandbox_bytes: int = 0,
        resumable: ResumableCommands | None = None,
        keeps_output: bool = False,
        is_known: bool = False,
    ) -> None:
        """Ask the agent to run it, or to go on with one that it knows.

        Raises: SandboxLost, SandboxFailed, InvalidSpec, Exhausted, Conflict when it has run and is forgotten.
        """
        session = process.session
        if command.terminal is None:
            timeout_s = bounded("command_timeout_s", timeout_s, self._sessions.ceilings, field="timeout_s")
        self._check_room(session)
        box = session.live_box()
        hidden = self._secrets.environment(session.owner, session.spec.secret_refs)
        recorder = Recorder(
            session,
            self._sessions.transcript(session),
            self._sessions.files,
            self._events,
            command,
            hidden=tuple(hidden.values()),
            reservation=self._recording.open(session.owner),
            observer=self._sessions.observer,
        )
        stream = ProcessStream(
            box, process.id, self._tasks, timeout_s=timeout_s, keep_in_sandbox_bytes=keep_in_sandbox_bytes
        )
        self._register(
            process,
            Reading(
                stream=stream,
                recorder=recorder,
                denials=self._denials(box.id),
                resumable=resumable,
                keeps_output=keeps_output,
            ),
        )
        env = {**self._environment(session), **hidden}
        args = exec_args(process.id, command, env=env, user=session.spec.user, timeout_s=timeout_s)
        digest = args["digest"] = _digest(args) if resumable is not None else ""
        try:
            await (stream.attach({}, digest=digest) if is_known else stream.start(args))
        except BaseException as error:
            await process.close(kill=not is_known, was_refused=isinstance(error, K8eError))
            raise

    def _check_room(self, session: Session) -> None:
        running = session.busy - session.ports
        if running >= self._at_once:
            raise Exhausted(f"session {session.session_id} already runs {running} commands: wait for one to end")

    def _register(self, process: Process, reading: Reading) -> None:
        """From now on it is known by its id, beside whoever read it before until the sandbox has answered."""
        session, name = process.session, process.id
        readers = self._readers.setdefault(session, {}).setdefault(name, Readers())
        readers.add(process)

        def left(parting: Parting | None) -> None:
            readers.leave(process, parting)
            of_session = self._readers.get(session, {})
            if not readers and of_session.get(name) is readers:
                del of_session[name]
                if not of_session:
                    del self._readers[session]

        process.begin_reading(reading, left=left)

    def title(self, session: Session, command: Command) -> str:
        """The beginning of its text; values of secrets are masked."""
        return title(command, tuple(self._secrets.environment(session.owner, session.spec.secret_refs).values()))

    async def open(
        self,
        session: Session,
        command: Command,
        *,
        exec_id: str = "",
        keeps_output: bool = False,
        is_known: bool = False,
    ) -> Process:
        """A foreground command. With an id of its own a caller that asks again gets the same one, not a second one.

        With `keeps_output` it gets the output from its beginning, else it says from where. One that `is_known` is never
        started.
        """
        resumable = self._resumable_in(session) if exec_id else None
        process_id = check_client_id(exec_id, field="exec_id") if exec_id else new_id("exec")
        process = Process(session, process_id, self._tasks, title=self.title(session, command))
        await self.start(
            process,
            command,
            timeout_s=self._own_limit_s(session) if command.timeout_s is None else command.timeout_s,
            keep_in_sandbox_bytes=IN_SANDBOX_BYTES,
            resumable=resumable,
            keeps_output=keeps_output and resumable is not None,
            is_known=is_known,
        )
        return process

    async def is_known(self, session: Session, exec_id: str) -> bool:
        """Whether the session's sandbox runs such a command, or has, and not forgotten it."""
        return any(
            answers.text(each, "id", most_bytes=_EXEC_ID_BYTES) == exec_id
            for each in await self._entries_in_sandbox(session)
        )

    async def _entries_in_sandbox(self, session: Session) -> Sequence[Mapping[str, Any]]:
        answer = await ask(session, "execs", {}, kind="session", name=session.session_id)
        return answers.rows(answer, "execs", most=_MAX_PROCESSES)

    async def views(self, session: Session, kept: Mapping[str, Process]) -> list[ProcessView]:
        """Every process that its sandbox runs for a caller, or has run and not forgotten; oldest first.

        `kept` are its background runs and terminals, by their ids.
        """
        found = [self._view(session, entry, kept) async for entry in InTurns(await self._entries_in_sandbox(session))]
        return sorted(found, key=lambda view: (view.started_at, view.exec_id))

    def _view(self, session: Session, entry: Mapping[str, Any], kept: Mapping[str, Process]) -> ProcessView:
        """The sandbox's word on what there is; ours on what it is for."""
        exec_id = answers.text(entry, "id", most_bytes=_EXEC_ID_BYTES)
        program = answers.note(entry, "program", most=_PROGRAM_CHARS)
        title, our_time = self._described(session, exec_id, kept)
        return ProcessView(
            exec_id=exec_id,
            pid=answers.integer(entry, "pid", most=answers.INT32),
            is_running=entry.get("running") is True,
            has_terminal=entry.get("pty") is True,
            takes_input=entry.get("input") is True,
            is_kept=exec_id in kept,
            command=title or program,
            # An agent that was started before an upgrade does not tell.
            started_at=max(0.0, answers.seconds(entry, "started_at")) or our_time,
        )

    def _described(self, session: Session, exec_id: str, kept: Mapping[str, Process]) -> tuple[str, float]:
        """Its command in short and when it was started, as far as that is known here."""
        if (process := kept.get(exec_id)) is not None:
            return process.title, process.started_at
        for reader in self._readers.get(session, {}).get(exec_id, ()):
            if reader.title:
                return reader.title, reader.started_at
        resumable = self._resumable.get(session.live_box().id)
        return (resumable.described(exec_id) if resumable is not None else None) or ("", 0.0)

    async def follow(self, session: Session, exec_id: str, offsets: Mapping[int, int]) -> Follower:
        """Read it from its sandbox, beside whoever else does, from these offsets or from what is still there.

        It counts as a command that runs: as much of its output can wait here to be read. Raises: SandboxLost, Exhausted.
        Where there is no such process, reading the follower raises NotFound.
        """
        self._check_room(session)
        stream = ProcessStream(session.live_box(), check_client_id(exec_id, field="exec_id"), self._tasks)
        using = Use(session)

        async def left() -> None:
            using()
            await stream.detach()

        try:
            await stream.follow(offsets)
        except BaseException:
            using()
            raise
        return Follower(stream.items(), offsets, left=left)

    async def signal(self, session: Session, exec_id: str, number: int) -> None:
        """Signal any process by its id; 9 ends everything it started. Raises: NotFound also where it has been forgotten."""
        session.last_used = time.time()
        await ask(session, "kill", {"id": exec_id, "signal": number}, kind="command", name=exec_id)

    async def append_input(self, session: Session, exec_id: str, data: bytes, *, is_last: bool) -> tuple[bool, bool]:
        """Input behind all that anybody has given: whether it was taken, and whether the command takes more.

        Waits a while for it to read. Raises: NotFound, SandboxLost, SandboxFailed.
        """
        whole = {"id": exec_id, "append": True, "data": base64.b64encode(data).decode("ascii"), "is_last": is_last}
        only_asking = {**whole, "data": "", "is_last": False}
        args = whole
        pause_s, until = _INPUT_PAUSE_S, time.monotonic() + _INPUT_WAIT_S
        using = Use(session)
        try:
            while True:
                answer = await ask(session, "input", args, kind="command", name=exec_id)
                is_taken, is_open = args is whole and answer.get("taken") is True, answer.get("open") is True
                if is_taken or not is_open or time.monotonic() > until:
                    return is_taken, is_open
                if not answer.get("room"):
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _INPUT_LONGEST_PAUSE_S)
                # Sent whole only where it will be taken.
                args = whole if answer.get("room") and args is only_asking else only_asking
        finally:
            using()

    async def write_input(
        self, session: Session, exec_id: str, offset: int, data: bytes, *, is_last: bool
    ) -> tuple[int, bool]:
        """How much of its input a command has taken, and whether it takes more; waits a while for it to read.

        Raises: NotFound, InvalidSpec where something is missing before the offset, SandboxLost, SandboxFailed.
        """
        whole = {"id": exec_id, "offset": offset, "data": base64.b64encode(data).decode("ascii"), "is_last": is_last}
        only_asking = {**whole, "offset": 0, "data": "", "is_last": False}
        args = whole
        end, pause_s, until = offset + len(data), _INPUT_PAUSE_S, time.monotonic() + _INPUT_WAIT_S
        using = Use(session)
        try:
            while True:
                answer = await ask(session, "input", args, kind="command", name=exec_id)
                taken = answers.integer(answer, "offset", most=answers.INT64)
                if taken >= end or not answer.get("open") or time.monotonic() > until:
                    return taken, bool(answer.get("open"))
                if not answer.get("room"):
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _INPUT_LONGEST_PAUSE_S)
                # Sent whole only where it will be taken.
                args = whole if answer.get("room") and args is only_asking else only_asking
        finally:
            using()

    def adopt(self, session: Session) -> None:
        """Callers of an earlier server may come back."""
        self._resumable_in(session).adopt()

    def end(self, sandbox: SandboxId) -> None:
        """It is gone: nobody can come back for anything in it."""
        if (resumable := self._resumable.pop(sandbox, None)) is not None:
            resumable.sandbox_ended()

    def close(self) -> None:
        for resumable in self._resumable.values():
            resumable.close()

    def _resumable_in(self, session: Session) -> ResumableCommands:
        box = session.live_box()
        if box.id not in self._resumable:
            self._resumable[box.id] = ResumableCommands(
                self._sessions.place(session) / "resumable",
                self._sessions.files,
                self._tasks,
                limit=session.spec.limits.output_bytes,
                reserve=functools.partial(self._kept_output.open, session.owner),
            )
        return self._resumable[box.id]

    async def find_program(self, session: Session, command: Command) -> FoundProgram:
        """Which program it would run, as its sandbox says. Raises: SandboxLost, SandboxFailed, HostUnsupported."""
        env = {**self._environment(session), **self._secrets.environment(session.owner, session.spec.secret_refs)}
        args = exec_args("", command, env=env, user=session.spec.user, timeout_s=0.0)
        try:
            answer = await ask(session, "program", args, kind="session", name=session.session_id)
        except InvalidSpec as error:
            if "unknown operation" not in str(error):
                raise
            raise HostUnsupported(f"this sandbox is older than its gates ({error}): create another session") from error
        return FoundProgram(answers.text(answer, "path"), answers.text(answer, "real"))

    def _environment(self, session: Session) -> dict[str, str]:
        """What every command of a session sees, but for values of secrets."""
        brokered = self._sessions.brokering.environment(session.spec, session.live_box().id)
        return {**self._sessions.settings.egress.env, **brokered, **session.spec.env}

    def recorded_bytes(self) -> int:
        """What is held of commands that run, for the transcript."""
        return self._recording.held()

    def _own_limit_s(self, session: Session) -> float:
        """What the session has; one that was made under a higher ceiling is not refused for it."""
        limit_s, most_s = session.spec.limits.command_timeout_s, self._sessions.ceilings.command_timeout_s
        return min(limit_s, most_s) if most_s else limit_s

    async def attach(
        self,
        process: Process,
        offsets: Mapping[int, int],
        *,
        keep_in_sandbox_bytes: int = 0,
        is_resumable: bool = False,
        stop: bool = False,
        is_patient: bool = False,
    ) -> None:
        """Read a process that already runs, in place of whoever does; with `stop`, giving up half-way ends it.

        With `is_resumable` its end is told, and perhaps not heard; of others it is written down. With `is_patient` a sandbox
        that cannot be reached now is no error: whoever reads the process tries again. Raises: SandboxLost, SandboxUnreachable.
        """
        box = process.session.live_box()
        stream = ProcessStream(box, process.id, self._tasks, keep_in_sandbox_bytes=keep_in_sandbox_bytes)
        self._register(
            process,
            Reading(
                stream=stream,
                denials=self._denials(box.id),
                resumable=self._resumable_in(process.session) if is_resumable else None,
            ),
        )
        process.begun.set()
        try:
            await stream.attach(offsets)
        except BaseException as error:
            if is_patient and isinstance(error, SandboxUnreachable):
                return
            await process.close(kill=stop, was_refused=isinstance(error, K8eError))
            raise

    async def take_over(self, session: Session, exec_id: str, offsets: Mapping[int, int], *, stop: bool) -> Process:
        """A foreground command again, whose reader was lost: from the offsets on.

        Raises: SandboxLost. Where there is no such command, reading the process raises NotFound.
        """
        title, started_at = self._described(session, exec_id, {})
        process = Process(session, exec_id, self._tasks, title=title, started_at=started_at or None)
        await self.attach(process, offsets, keep_in_sandbox_bytes=IN_SANDBOX_BYTES, is_resumable=True, stop=stop)
        return process

    async def run(
        self,
        session: Session,
        command: Command,
        *,
        stdin: bytes = b"",
        exec_id: str = "",
        is_known: bool = False,
        reserve: Reserve = unlimited,
    ) -> ExecResult:
        """Run to the end and return what it printed, up to the session's bound; cancelling kills the command."""
        limit = session.spec.limits.output_bytes
        captures = {STDOUT: Capture(limit, reserve), STDERR: Capture(limit, reserve)}
        process = await self.open(
            session,
            replace(command, stdin=command.stdin or bool(stdin)),
            exec_id=exec_id,
            keeps_output=True,
            is_known=is_known,
        )
        feeding = self._tasks.start(_feed(process, stdin), name=f"feed {process.id}") if stdin else None
        try:
            async for item in process:
                if isinstance(item, Outcome):
                    return _result(captures, item, process.denied)
                captures[item.channel].add(item.payload, item.offset)
        finally:
            if feeding is not None:
                feeding.cancel()
            await process.close()
        raise SandboxFailed("run the command", "it ended without an outcome")

    def _denials(self, sandbox: SandboxId) -> Callable[[], Awaitable[tuple[Denial, ...]]]:
        """Whatever the sandbox is denied from now on."""
        return functools.partial(self._egress.denials_since, sandbox, self._egress.mark(sandbox))


async def processes(session: Session) -> list[ProcessInfo]:
    """What runs in a session's sandbox. Raises: SandboxLost, SandboxFailed."""
    answer = await ask(session, "processes", {}, kind="session", name=session.session_id)
    entries = answers.rows(answer, "processes", most=_MAX_PROCESSES)
    return [
        ProcessInfo(
            pid=answers.integer(entry, "pid", most=answers.INT32),
            comm=answers.text(entry, "comm", most_bytes=_COMM_BYTES),
            state=answers.word(entry, "state")[:1],
            # An agent that was started before an upgrade does not tell.
            args=answers.note(entry, "args", most=_ARGS_CHARS),
        )
        async for entry in InTurns(entries)
    ]


def _digest(args: Mapping[str, Any]) -> str:
    """Tells commands apart that are given the same name."""
    what = [args[name] for name in ("argv", "shell", "language", "code")]
    return hashlib.sha256(json.dumps(what).encode("utf-8", "surrogatepass")).hexdigest()


def _result(captures: Mapping[int, Capture], outcome: Outcome, denied: tuple[Denial, ...]) -> ExecResult:
    stderr = captures[STDERR].value()
    if outcome.reason is not Reason.NONE and outcome.detail and not stderr:
        # A path in it may be any bytes.
        stderr = f"k8e: {outcome.detail}\n".encode("utf-8", "surrogateescape")
    return ExecResult(
        stdout=captures[STDOUT].value(),
        stderr=stderr,
        outcome=outcome,
        truncated=any(capture.is_truncated for capture in captures.values()),
        egress_denied=denied,
    )


async def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(SandboxFailed):
        await process.send(data)
        await process.send_eof()
