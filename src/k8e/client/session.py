"""One session as an object: everything that can be done in it, without naming it again."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from k8e.client.approvals import ApprovalCalls
from k8e.client.errors import NotFound
from k8e.client.execs import Command, ExecCalls
from k8e.client.files import FileCalls
from k8e.client.network import NetworkCalls
from k8e.client.ports import PortCalls
from k8e.client.processes import ProcessCalls
from k8e.client.runs import AsyncRun, RunCalls
from k8e.client.scoped import Scoped
from k8e.client.sessions import SessionCalls
from k8e.client.terminals import AsyncTerminal
from k8e.client.transfers import TransferCalls
from k8e.client.values import ExecResult

if TYPE_CHECKING:
    from k8e.client.aio import AsyncSandboxClient

__all__ = ["AsyncChildren", "AsyncSession", "AsyncSessionFiles"]


class AsyncSessionFiles:
    """A session's files. A relative path means one below /workspace."""

    def __init__(self, client: AsyncSandboxClient, session_id: str) -> None:
        self.client = client
        self.session_id = session_id

    read = Scoped(FileCalls.read_file)
    read_bytes = Scoped(FileCalls.read_bytes)
    read_chunks = Scoped(FileCalls.read_chunks)
    write = Scoped(FileCalls.write_file)
    list = Scoped(FileCalls.list_directory)
    stat = Scoped(FileCalls.stat)
    mkdir = Scoped(FileCalls.make_directory)
    move = Scoped(FileCalls.move)
    remove = Scoped(FileCalls.remove)
    watch = Scoped(FileCalls.watch)
    upload = Scoped(TransferCalls.upload)
    download = Scoped(TransferCalls.download)


class AsyncChildren:
    """Sessions with sandboxes of their own that share this one's /workspace."""

    def __init__(self, client: AsyncSandboxClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    async def create(self) -> AsyncSession:
        return self._client.session(await self._client.subagent(self._session_id))

    async def list(self) -> Sequence[AsyncSession]:
        info = await self._client.get(self._session_id)
        return [self._client.session(each) for each in info.child_session_ids]


class AsyncSession:
    """A session; as a context manager it is destroyed at the end."""

    def __init__(self, client: AsyncSandboxClient, session_id: str) -> None:
        self.client = client
        self.session_id = session_id
        self.files = AsyncSessionFiles(client, session_id)
        self.children = AsyncChildren(client, session_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()

    exec = Scoped(ExecCalls.exec)
    exec_stream = Scoped(ExecCalls.exec_stream)
    exec_output = Scoped(ExecCalls.exec_output)
    execs = Scoped(ExecCalls.execs)
    follow_exec = Scoped(ExecCalls.follow_exec)
    send_input = Scoped(ExecCalls.send_input)
    signal_exec = Scoped(ExecCalls.signal_exec)
    process = Scoped(ProcessCalls.start_process)
    open_port = Scoped(PortCalls.open_port)
    forward = Scoped(PortCalls.forward)
    runs = Scoped(RunCalls.runs)
    info = Scoped(SessionCalls.get)
    extend = Scoped(SessionCalls.extend)
    update_labels = Scoped(SessionCalls.update_labels)
    processes = Scoped(SessionCalls.processes)
    events = Scoped(SessionCalls.events)
    update_allowed_hosts = Scoped(NetworkCalls.update_allowed_hosts)
    egress = Scoped(NetworkCalls.egress)
    pip_install = Scoped(NetworkCalls.pip_install)
    confirm = Scoped(ApprovalCalls.confirm)

    async def run(
        self,
        code: str | bytes,
        language: str = "bash",
        timeout: float = 30,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program's text, byte for byte."""
        return await self.client.run(code, language, timeout, session_id=self.session_id, workdir=workdir, env=env)

    async def background(
        self,
        code: str | bytes,
        language: str = "bash",
        timeout: float = 0,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> AsyncRun:
        """Start a program that goes on without us; with `stdin` it is given input by `send_input`."""
        run_id = await self.client.run_background(
            code, language, timeout, session_id=self.session_id, workdir=workdir, env=env, stdin=stdin
        )
        return AsyncRun(self.client, run_id)

    async def start(
        self,
        command: Command,
        timeout: float = 0,
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        user: str = "",
        stdin: bool = False,
    ) -> AsyncRun:
        """Start a command that goes on without us; with `stdin` it is given input by `send_input`."""
        run_id = await self.client.start_run(
            self.session_id, command, timeout, workdir=workdir, env=env, user=user, stdin=stdin
        )
        return AsyncRun(self.client, run_id)

    async def terminal(
        self,
        argv: Sequence[str] = ("/bin/bash",),
        *,
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        cols: int = 80,
    ) -> AsyncTerminal:
        """Start a program on a pty."""
        terminal_id = await self.client.create_terminal(
            self.session_id, argv, workdir=workdir, env=env, rows=rows, cols=cols
        )
        return AsyncTerminal(self.client, terminal_id)

    async def destroy(self) -> None:
        """End it and everything in it; harmless when it is gone."""
        with contextlib.suppress(NotFound):
            await self.client.destroy_session(self.session_id)
