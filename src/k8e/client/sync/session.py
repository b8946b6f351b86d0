"""Sessions, runs, processes and terminals as objects, for code without an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar, cast

from k8e.client.ports import AsyncForward, AsyncPortConnection
from k8e.client.processes import AsyncProcess, AsyncProcessInput
from k8e.client.runs import AsyncRun
from k8e.client.session import AsyncChildren, AsyncSession, AsyncSessionFiles
from k8e.client.sync.faces import Blocking, Iterating, Making, drained
from k8e.client.sync.loop import LoopThread
from k8e.client.terminals import AsyncTerminal
from k8e.client.values import Chunk, Exit

__all__ = [
    "Children",
    "Forward",
    "PortConnection",
    "Process",
    "ProcessInput",
    "Run",
    "Session",
    "SessionFiles",
    "Terminal",
]

A = TypeVar("A")


class Plain(Generic[A]):
    """An object in front of an async one, whose calls run on the client's loop."""

    def __init__(self, calls: A, loop: LoopThread) -> None:
        self.calls = calls
        self.loop = loop


class Run(Plain[AsyncRun]):
    """A background run; letting go of the object leaves the run alone."""

    @property
    def run_id(self) -> str:
        return self.calls.run_id

    poll = Blocking(AsyncRun.poll)
    wait = Blocking(AsyncRun.wait)
    kill = Blocking(AsyncRun.kill)
    output = Iterating(AsyncRun.output)


class ProcessInput(Plain[AsyncProcessInput]):
    """The standard input of a command. Read its output meanwhile: as with every pipe, a full one waits."""

    write = Blocking(AsyncProcessInput.write)
    close = Blocking(AsyncProcessInput.close)


class Process(Plain[AsyncProcess]):
    """A running command. Iterating yields its output; `exit` is there when it has ended."""

    def __init__(self, calls: AsyncProcess, loop: LoopThread) -> None:
        super().__init__(calls, loop)
        self.stdin = ProcessInput(calls.stdin, loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        return drained(self.loop, cast("AsyncGenerator[Chunk, None]", self.calls.output()))

    @property
    def exec_id(self) -> str:
        return self.calls.exec_id

    @property
    def session_id(self) -> str:
        return self.calls.session_id

    @property
    def exit(self) -> Exit | None:
        return self.calls.exit

    output = Iterating(AsyncProcess.output)
    wait = Blocking(AsyncProcess.wait)
    kill = Blocking(AsyncProcess.kill)
    close = Blocking(AsyncProcess.close)


class PortConnection(Plain[AsyncPortConnection]):
    """A connection to a server inside. Receive while you send: as with every connection, a full one waits."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self.calls.port

    receive = Blocking(AsyncPortConnection.receive)
    send = Blocking(AsyncPortConnection.send)
    send_eof = Blocking(AsyncPortConnection.send_eof)
    ended = Blocking(AsyncPortConnection.ended)
    close = Blocking(AsyncPortConnection.close)


class Forward(Plain[AsyncForward]):
    """A port of this machine that leads to one inside, until it is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self.calls.port

    close = Blocking(AsyncForward.close)


class Terminal(Plain[AsyncTerminal]):
    """A program on a pty; letting go of the object leaves it running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    @property
    def terminal_id(self) -> str:
        return self.calls.terminal_id

    write = Blocking(AsyncTerminal.write)
    resize = Blocking(AsyncTerminal.resize)
    output = Iterating(AsyncTerminal.output)
    destroy = Blocking(AsyncTerminal.destroy)


class SessionFiles(Plain[AsyncSessionFiles]):
    """A session's files. A relative path means one below /workspace."""

    read = Blocking(AsyncSessionFiles.read)
    read_bytes = Blocking(AsyncSessionFiles.read_bytes)
    read_chunks = Iterating(AsyncSessionFiles.read_chunks)
    write = Blocking(AsyncSessionFiles.write)
    list = Blocking(AsyncSessionFiles.list)
    stat = Blocking(AsyncSessionFiles.stat)
    mkdir = Blocking(AsyncSessionFiles.mkdir)
    move = Blocking(AsyncSessionFiles.move)
    remove = Blocking(AsyncSessionFiles.remove)
    watch = Iterating(AsyncSessionFiles.watch)
    upload = Blocking(AsyncSessionFiles.upload)
    download = Blocking(AsyncSessionFiles.download)


class Children(Plain[AsyncChildren]):
    """Sessions with sandboxes of their own that share this one's /workspace."""

    def create(self) -> Session:
        return Session(self.loop.wait(self.calls.create()), self.loop)

    def list(self) -> Sequence[Session]:
        return [Session(each, self.loop) for each in self.loop.wait(self.calls.list())]


class Session(Plain[AsyncSession]):
    """A session; as a context manager it is destroyed at the end."""

    def __init__(self, calls: AsyncSession, loop: LoopThread) -> None:
        super().__init__(calls, loop)
        self.files = SessionFiles(calls.files, loop)
        self.children = Children(calls.children, loop)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()

    @property
    def session_id(self) -> str:
        return self.calls.session_id

    run = Blocking(AsyncSession.run)
    exec = Blocking(AsyncSession.exec)
    exec_stream = Iterating(AsyncSession.exec_stream)
    exec_output = Iterating(AsyncSession.exec_output)
    execs = Blocking(AsyncSession.execs)
    follow_exec = Iterating(AsyncSession.follow_exec)
    send_input = Blocking(AsyncSession.send_input)
    signal_exec = Blocking(AsyncSession.signal_exec)
    process = Making(AsyncSession.process, Process)
    background = Making(AsyncSession.background, Run)
    start = Making(AsyncSession.start, Run)
    runs = Blocking(AsyncSession.runs)
    open_port = Making(AsyncSession.open_port, PortConnection)
    forward = Making(AsyncSession.forward, Forward)
    terminal = Making(AsyncSession.terminal, Terminal)
    info = Blocking(AsyncSession.info)
    extend = Blocking(AsyncSession.extend)
    update_labels = Blocking(AsyncSession.update_labels)
    destroy = Blocking(AsyncSession.destroy)
    processes = Blocking(AsyncSession.processes)
    events = Blocking(AsyncSession.events)
    update_allowed_hosts = Blocking(AsyncSession.update_allowed_hosts)
    egress = Iterating(AsyncSession.egress)
    pip_install = Blocking(AsyncSession.pip_install)
    confirm = Blocking(AsyncSession.confirm)
