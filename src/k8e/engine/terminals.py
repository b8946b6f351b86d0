"""Terminals: programs on a pty that people and agents look at, leave and come back to.

The server always reads, so a program nobody watches never blocks; it keeps the last bytes for the next viewer. The
newest of them also stay unacknowledged in the sandbox, so that a restarted server can show them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from k8e.engine import answers
from k8e.engine.commands import Commands, ask
from k8e.engine.execs import ExecStream
from k8e.engine.session import Session
from k8e.engine.store import Change, Store
from k8e.errors import Conflict, Exhausted, InvalidSpec, K8eError, NotFound
from k8e.model import Command, Outcome, OwnerId, Reason, SessionId, Status, TerminalId, TerminalSize
from k8e.random_ids import new_id
from k8e.tasks import Tasks

__all__ = ["Terminal", "TerminalView", "Terminals"]

_KEEP_BYTES: Final = 1024 * 1024
_KEPT_IN_SANDBOX_BYTES: Final = 256 * 1024
_HAS_ENDED: Final = "terminal {} has ended"
_KILLED: Final = Outcome(
    status=Status.FAILED,
    exit_code=128 + signal.SIGKILL,
    signal=signal.SIGKILL,
    reason=Reason.KILLED,
    detail="the terminal was closed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalView:
    terminal_id: TerminalId
    session_id: SessionId
    pid: int


class Terminal:
    """One pty and the bytes it has shown last."""

    def __init__(self, terminal_id: TerminalId, session: Session, stream: ExecStream, *, pid: int) -> None:
        self.id = terminal_id
        self.session = session
        self.stream = stream
        self.pid = pid
        self.outcome: Outcome | None = None
        self.task: asyncio.Task[None] | None = None
        self._kept = bytearray()
        self._start = 0
        self._viewers: dict[object, int] = {}
        self._changed = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Type into it; waits while nobody reads. Raises: Conflict when it has ended, SandboxLost, SandboxFailed."""
        self._check_running()
        self.session.last_used = time.time()
        await self.stream.send(data)

    async def resize(self, size: TerminalSize) -> None:
        self._check_running()
        await self._ask("resize", rows=size.rows, cols=size.cols)

    async def foreground(self) -> tuple[int, bool]:
        """The foreground process group (-1 unknown), and whether it waits for input."""
        try:
            self._check_running()
            answer = await self._ask("foreground")
        except Conflict:
            return -1, False
        group = answers.optional(answer, "pgid", least=-1, most=answers.INT32, default=-1)
        return group, answer.get("input_waiting") is True

    async def signal(self, number: int) -> None:
        """Signal the foreground group; 9 ends everything that was started here."""
        self._check_running()
        await self._ask("kill", signal=number)

    async def ended(self) -> None:
        """Wait for the program's end."""
        while self.outcome is None:
            await self._changed.wait()

    def _check_running(self) -> None:
        if self.outcome is not None:
            raise Conflict(_HAS_ENDED.format(self.id))

    async def _ask(self, op: str, **args: object) -> dict[str, Any]:
        """Raises: Conflict when it has ended, SandboxFailed."""
        try:
            return await ask(self.session, op, {"id": self.id, **args}, kind="terminal", name=self.id)
        except NotFound as error:
            # The sandbox knows the end before we have read all that was shown until then.
            raise Conflict(_HAS_ENDED.format(self.id)) from error

    def view(self) -> TerminalView:
        return TerminalView(terminal_id=self.id, session_id=self.session.session_id, pid=self.pid)

    async def show(self) -> AsyncIterator[bytes | Outcome]:
        """What is kept, then everything that follows, then the outcome."""
        viewer = object()
        self._viewers[viewer] = self._start
        try:
            while True:
                changed, outcome = self._changed, self.outcome
                at = self._viewers[viewer]
                payload = bytes(self._kept[at - self._start :])
                if payload:
                    yield payload
                    self._viewers[viewer] = at + len(payload)
                    self.notify()
                elif outcome is not None:
                    yield outcome
                    return
                else:
                    await changed.wait()
        finally:
            del self._viewers[viewer]
            self.notify()

    async def keep(self, payload: bytes) -> None:
        """Add output; waits for viewers that lag by all that is kept, because a terminal must not lose bytes on screen."""
        while self._viewers and self._end() - min(self._viewers.values()) > _KEEP_BYTES:
            await self._changed.wait()
        self._kept += payload
        surplus = len(self._kept) - 2 * _KEEP_BYTES
        if surplus > 0 and not self._viewers:
            del self._kept[: surplus + _KEEP_BYTES]
            self._start += surplus + _KEEP_BYTES
        elif surplus > 0:
            cut = min(min(self._viewers.values()) - self._start, surplus)
            del self._kept[:cut]
            self._start += cut
        self.notify()

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _end(self) -> int:
        return self._start + len(self._kept)


class Terminals:
    def __init__(self, store: Store, commands: Commands, tasks: Tasks, *, per_session: int) -> None:
        self._store = store
        self._commands = commands
        self._tasks = tasks
        self._per_session = per_session
        self._by_id: dict[TerminalId, Terminal] = {}

    async def create(self, session: Session, command: Command) -> Terminal:
        """A program on a pty. Raises: InvalidSpec when it cannot be started."""
        if session.terminals >= self._per_session:
            raise Exhausted(f"session {session.session_id} already has {session.terminals} terminals: close one")
        # From now on, or many that are opened at once would each find room.
        session.terminals += 1
        try:
            terminal = await self._opened(session, command)
        except BaseException:
            session.terminals -= 1
            raise
        self._follow(terminal)
        return terminal

    async def _opened(self, session: Session, command: Command) -> Terminal:
        terminal_id = TerminalId(new_id("term"))
        stream = await self._commands.start(
            session, terminal_id, command, timeout_s=0.0, keep_in_sandbox_bytes=_KEPT_IN_SANDBOX_BYTES
        )
        try:
            pid = await _pid(stream, command)
            terminal = Terminal(terminal_id, session, stream, pid=pid)
            await self._store.commit(
                Change("INSERT INTO terminals VALUES (?,?,?,?)", (terminal_id, session.owner, session.session_id, pid))
            )
        except BaseException:
            await stream.close()
            raise
        return terminal

    async def resume(self, session: Session, row: sqlite3.Row) -> None:
        """Take back a terminal after a restart, with the last bytes that its sandbox kept."""
        stream = await self._commands.attach(session, row["id"], {}, keep_in_sandbox_bytes=_KEPT_IN_SANDBOX_BYTES)
        session.terminals += 1
        self._follow(Terminal(TerminalId(row["id"]), session, stream, pid=row["pid"]))

    def find(self, owner: OwnerId, terminal_id: str) -> Terminal:
        """The caller's own terminal. Raises: NotFound."""
        terminal = self._by_id.get(TerminalId(terminal_id))
        if terminal is None or terminal.session.owner != owner:
            raise NotFound("terminal", terminal_id)
        return terminal

    async def destroy(self, terminal: Terminal, *, grace_s: float) -> None:
        """Hang up, wait at most `grace_s`, then kill whatever is left."""
        with contextlib.suppress(Conflict):  # by itself, meanwhile
            if grace_s > 0:
                await terminal.signal(signal.SIGHUP)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await terminal.ended()
            await terminal.signal(signal.SIGKILL)
        # Nobody reads it to its end any more, and until then it would keep its session busy.
        _stop(terminal, _KILLED)
        await terminal.stream.close()
        self._by_id.pop(terminal.id, None)
        await self._store.commit(Change("DELETE FROM terminals WHERE id=?", (terminal.id,)))

    def drop(self, session: Session) -> None:
        """The session ends: viewers hear of it."""
        for terminal in [terminal for terminal in self._by_id.values() if terminal.session is session]:
            _stop(terminal, _lost("the session ended"))
            self._by_id.pop(terminal.id, None)

    def _follow(self, terminal: Terminal) -> None:
        self._by_id[terminal.id] = terminal
        terminal.task = self._tasks.start(self._pump(terminal), name=f"terminal {terminal.id}")

    async def _pump(self, terminal: Terminal) -> None:
        try:
            async for item in terminal.stream:
                if isinstance(item, Outcome):
                    terminal.end(item)
                    terminal.stream.forget()
                else:
                    await terminal.keep(item.payload)
        except K8eError as error:
            # Nobody reads it any more: what still runs must not, and must not keep its session busy.
            await terminal.stream.close()
            terminal.end(_lost(str(error)))
        finally:
            terminal.stream.leave_record()
            terminal.session.terminals -= 1


def _stop(terminal: Terminal, outcome: Outcome) -> None:
    """Read no more of it; viewers that have not heard its own end hear this one."""
    if terminal.task is not None:
        terminal.task.cancel()
    if terminal.outcome is None:
        terminal.end(outcome)


async def _pid(stream: ExecStream, command: Command) -> int:
    pid = await stream.started()
    if not pid:
        outcome = await stream.next()
        detail = outcome.detail if isinstance(outcome, Outcome) else "it ended at once"
        # The agent begins with what it could not use: the directory or the program.
        raise InvalidSpec(detail, field="workdir" if detail.startswith(f"{command.cwd}: ") else "argv")
    return pid


def _lost(detail: str) -> Outcome:
    return Outcome(status=Status.FAILED, exit_code=137, reason=Reason.SANDBOX_LOST, detail=detail)
