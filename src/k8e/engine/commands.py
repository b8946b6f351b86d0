"""Starting commands in sessions: the one path that foreground calls, background runs and terminals share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from k8e.byte_budget import ByteBudget, Reserve, unlimited
from k8e.capture import Capture
from k8e.engine import answers
from k8e.engine.ceilings import bounded
from k8e.engine.egress import Egress
from k8e.engine.events import EventLog
from k8e.engine.execs import STDERR, STDOUT, ExecStream, exec_args, remote_failure
from k8e.engine.ids import check_client_id
from k8e.engine.questions import FoundProgram
from k8e.engine.recording import RecordedStream, Recorder, title
from k8e.engine.resumable import IN_SANDBOX_BYTES, ResumableCommands
from k8e.engine.secrets import Secrets
from k8e.engine.session import Session, Use
from k8e.engine.sessions import Sessions
from k8e.errors import Exhausted, HostUnsupported, InvalidSpec, SandboxFailed
from k8e.loop_turns import InTurns
from k8e.model import MIB, Command, Denial, ExecResult, Outcome, ProcessInfo, Reason, SandboxId
from k8e.random_ids import new_id
from k8e.tasks import Tasks
from k8e.wire.aio import LinkLost, RemoteError

__all__ = ["Commands", "ask", "processes"]

_MAX_PROCESSES: Final = 65_536
_COMM_BYTES: Final = 256
_EXEC_ID_BYTES: Final = 256
_INPUT_PAUSE_S: Final = 0.002
_INPUT_LONGEST_PAUSE_S: Final = 0.1
_INPUT_WAIT_S: Final = 10.0
"""For a command that does not read; then the caller asks again."""
_ARGS_CHARS: Final = 4096


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

    async def start(
        self,
        session: Session,
        exec_id: str,
        command: Command,
        *,
        timeout_s: float,
        keep_in_sandbox_bytes: int = 0,
        resumable: ResumableCommands | None = None,
        keeps_output: bool = False,
        is_known: bool = False,
    ) -> ExecStream:
        """Ask the agent to run it, or to go on with one that it knows.

        Raises: SandboxLost, SandboxFailed, InvalidSpec, Exhausted, Conflict when it has run and is forgotten.
        """
        if command.terminal is None:
            timeout_s = bounded("command_timeout_s", timeout_s, self._sessions.ceilings, field="timeout_s")
        running = session.busy - session.ports
        if running >= self._at_once:
            raise Exhausted(f"session {session.session_id} already runs {running} commands: wait for one to end")
        box = session.live_box()
        hidden = self._secrets.environment(session.owner, session.spec.secret_refs)
        stream = RecordedStream(
            box,
            exec_id,
            self._tasks,
            timeout_s=timeout_s,
            ended=Use(session),
            denials=self._denials(box.id),
            keep_in_sandbox_bytes=keep_in_sandbox_bytes,
            resumable=resumable,
            keeps_output=keeps_output,
        )
        stream.recorder = Recorder(
            session,
            self._sessions.transcript(session),
            self._sessions.files,
            self._events,
            command,
            hidden=tuple(hidden.values()),
            reservation=self._recording.open(session.owner),
            observer=self._sessions.observer,
        )
        env = {**self._environment(session), **hidden}
        args = exec_args(exec_id, command, env=env, user=session.spec.user, timeout_s=timeout_s)
        digest = args["digest"] = _digest(args) if resumable is not None else ""
        try:
            await (stream.attach({}, digest=digest) if is_known else stream.start(args))
        except BaseException:
            await stream.close(kill=not is_known)
            raise
        return stream

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
    ) -> ExecStream:
        """A foreground command. With an id of its own a caller that asks again gets the same one, not a second one.

        With `keeps_output` it gets the output from its beginning, else it says from where. One that `is_known` is never
        started.
        """
        resumable = self._resumable_in(session) if exec_id else None
        return await self.start(
            session,
            check_client_id(exec_id, field="exec_id") if exec_id else new_id("exec"),
            command,
            timeout_s=self._own_limit_s(session) if command.timeout_s is None else command.timeout_s,
            keep_in_sandbox_bytes=IN_SANDBOX_BYTES,
            resumable=resumable,
            keeps_output=keeps_output and resumable is not None,
            is_known=is_known,
        )

    async def is_known(self, session: Session, exec_id: str) -> bool:
        """Whether the session's sandbox runs such a command, or has, and not forgotten it."""
        answer = await ask(session, "execs", {}, kind="session", name=session.session_id)
        known = answers.rows(answer, "execs", most=_MAX_PROCESSES)
        return any(answers.text(each, "id", most_bytes=_EXEC_ID_BYTES) == exec_id for each in known)

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

    def take_over(self, session: Session) -> None:
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
        session: Session,
        exec_id: str,
        offsets: Mapping[int, int],
        *,
        keep_in_sandbox_bytes: int = 0,
        stop: bool = False,
    ) -> ExecStream:
        """Go on with a command that already runs; with `stop`, giving up half-way ends it. Raises: NotFound."""
        box = session.live_box()
        # Of a background run the end is written down; of others it is told, and perhaps not heard.
        resumable = self._resumable_in(session) if keep_in_sandbox_bytes else None
        stream = ExecStream(
            box,
            exec_id,
            self._tasks,
            ended=Use(session),
            denials=self._denials(box.id),
            keep_in_sandbox_bytes=keep_in_sandbox_bytes,
            resumable=resumable,
        )
        try:
            await stream.attach(offsets)
        except BaseException as error:
            await stream.close(kill=stop and isinstance(error, asyncio.CancelledError))
            raise
        return stream

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
        stream = await self.open(
            session,
            replace(command, stdin=command.stdin or bool(stdin)),
            exec_id=exec_id,
            keeps_output=True,
            is_known=is_known,
        )
        feeding = self._tasks.start(_feed(stream, stdin), name=f"feed {stream.exec_id}") if stdin else None
        try:
            async for item in stream:
                if isinstance(item, Outcome):
                    return _result(captures, item, stream.denied)
                captures[item.channel].add(item.payload, item.offset)
        finally:
            if feeding is not None:
                feeding.cancel()
            await stream.close()
        raise SandboxFailed("run the command", "it ended without an outcome")

    def _denials(self, sandbox: SandboxId) -> Callable[[], Awaitable[tuple[Denial, ...]]]:
        """Whatever the sandbox is denied from now on."""
        return functools.partial(self._egress.denials_since, sandbox, self._egress.mark(sandbox))


async def ask(session: Session, op: str, args: Mapping[str, object], *, kind: str, name: str) -> dict[str, Any]:
    """A small question to a session's agent. Raises: NotFound for that kind and name, SandboxLost, SandboxFailed."""
    box = session.live_box()
    try:
        return await (await box.link()).call(op, args)
    except RemoteError as error:
        raise remote_failure(error, kind=kind, name=name) from error
    except (LinkLost, TimeoutError) as error:
        raise await box.unreachable(error) from error


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


async def _feed(stream: ExecStream, data: bytes) -> None:
    with contextlib.suppress(SandboxFailed):
        await stream.send(data)
        await stream.send_eof()
