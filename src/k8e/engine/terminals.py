"""Terminals: programs on a pty that people and agents look at, leave and come back to.

The server always reads, so a program nobody watches never blocks; it keeps the last bytes for the next viewer. The
newest of them also stay unacknowledged in the sandbox, so that a restarted server can show them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from k8e.engine import answers
from k8e.engine.commands import Commands
from k8e.engine.process import Process, ask
from k8e.engine.process_stream import Output, lost
from k8e.engine.recent_output import RecentOutput
from k8e.engine.records import TERMINALS, TerminalRecord
from k8e.engine.session import Session
from k8e.engine.store import Store
from k8e.errors import Conflict, Exhausted, InvalidSpec, NotFound
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


@dataclass(frozen=True, slots=True, eq=False)
class Terminal:
    """A process on a pty."""

    process: Process
    pid: int

    @property
    def terminal_id(self) -> TerminalId:
        return TerminalId(self.process.id)

    @property
    def session(self) -> Session:
        return self.process.session

    async def write(self, data: bytes) -> None:
        """Type into it; waits while nobody reads. Raises: Conflict when it has ended, SandboxLost, SandboxFailed."""
        self._check_running()
        self.session.last_used = time.time()
        await self.process.send(data)

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
        if not await self.process.signal(number):
            raise Conflict(_HAS_ENDED.format(self.terminal_id))

    def _check_running(self) -> None:
        if self.process.outcome is not None:
            raise Conflict(_HAS_ENDED.format(self.terminal_id))

    async def _ask(self, op: str, **args: object) -> dict[str, Any]:
        """Raises: Conflict when it has ended, SandboxFailed."""
        name = self.terminal_id
        try:
            return await ask(self.session, op, {"id": name, **args}, kind="terminal", name=name)
        except NotFound as error:
            # The sandbox knows the end before we have read all that was shown until then.
            raise Conflict(_HAS_ENDED.format(name)) from error

    def view(self) -> TerminalView:
        return TerminalView(terminal_id=self.terminal_id, session_id=self.session.session_id, pid=self.pid)

    def record(self) -> TerminalRecord:
        """As it is written down."""
        return TerminalRecord(
            terminal_id=self.terminal_id,
            owner=self.session.owner,
            session_id=self.session.session_id,
            pid=self.pid,
        )

    async def show(self) -> AsyncIterator[bytes | Outcome]:
        """What is kept, then everything that follows, then the outcome."""
        async with contextlib.aclosing(self.process.follow({})) as items:
            async for item in items:
                yield item.payload if isinstance(item, Output) else item


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
        self._keep(terminal)
        return terminal

    async def _opened(self, session: Session, command: Command) -> Terminal:
        terminal_id = TerminalId(new_id("term"))
        process = self._process(session, terminal_id, title=self._commands.title(session, command))
        await self._commands.start(process, command, timeout_s=0.0, keep_in_sandbox_bytes=_KEPT_IN_SANDBOX_BYTES)
        try:
            terminal = Terminal(process, await _pid(process, command))
            await self._store.commit(TERMINALS.put(terminal.record()))
        except BaseException:
            await process.close()
            raise
        return terminal

    def _process(self, session: Session, terminal_id: TerminalId, *, title: str = "") -> Process:
        return Process(session, terminal_id, self._tasks, title=title, output=RecentOutput(keep_bytes=_KEEP_BYTES))

    async def resume(self, session: Session, record: TerminalRecord) -> None:
        """Take back a terminal after a restart, with the last bytes that its sandbox kept."""
        process = self._process(session, record.terminal_id)
        await self._commands.attach(process, {}, keep_in_sandbox_bytes=_KEPT_IN_SANDBOX_BYTES, is_patient=True)
        session.terminals += 1
        self._keep(Terminal(process, record.pid))

    def find(self, owner: OwnerId, terminal_id: str) -> Terminal:
        """The caller's own terminal. Raises: NotFound."""
        terminal = self._by_id.get(TerminalId(terminal_id))
        if terminal is None or terminal.session.owner != owner:
            raise NotFound("terminal", terminal_id)
        return terminal

    def of(self, session: Session) -> list[Terminal]:
        return [terminal for terminal in self._by_id.values() if terminal.session is session]

    async def destroy(self, terminal: Terminal, *, grace_s: float) -> None:
        """Hang up, wait at most `grace_s`, then kill whatever is left."""
        with contextlib.suppress(Conflict):  # by itself, meanwhile
            if grace_s > 0:
                await terminal.signal(signal.SIGHUP)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await terminal.process.ended()
            await terminal.signal(signal.SIGKILL)
        # Nobody reads it to its end any more, and until then it would keep its session busy.
        terminal.process.stop(_KILLED, kill=True)
        self._by_id.pop(terminal.terminal_id, None)
        await self._store.commit(TERMINALS.delete(*TERMINALS.key(terminal.record())))

    def drop(self, session: Session) -> None:
        """The session ends: viewers hear of it."""
        for terminal in self.of(session):
            terminal.process.stop(lost("the session ended"))
            self._by_id.pop(terminal.terminal_id, None)

    def _keep(self, terminal: Terminal) -> None:
        session = terminal.session

        async def ended(_outcome: Outcome) -> bool:
            # Whoever looks at it hears so. A later server has no use for it.
            self._store.post(TERMINALS.delete(*TERMINALS.key(terminal.record())))
            self._forget_oldest(session)
            return True

        def afterwards() -> None:
            session.terminals -= 1

        self._by_id[terminal.terminal_id] = terminal
        terminal.process.keep_reading(ended, afterwards=afterwards)

    def _forget_oldest(self, session: Session) -> None:
        """Of those that have ended, a session keeps as many as it may have running; the one that ends now stays."""
        ended = [each for each in self.of(session) if each.process.outcome is not None]
        for terminal in ended[: max(0, len(ended) + 1 - self._per_session)]:
            del self._by_id[terminal.terminal_id]


async def _pid(process: Process, command: Command) -> int:
    pid = await process.started()
    if not pid:
        outcome = await process.next()
        detail = outcome.detail if isinstance(outcome, Outcome) else "it ended at once"
        # The agent begins with what it could not use: the directory or the program.
        raise InvalidSpec(detail, field="workdir" if detail.startswith(f"{command.cwd}: ") else "argv")
    return pid
