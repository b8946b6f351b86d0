"""An engine for tests of the doors, the SDK and the command line: real processes on this host, no isolation.

It keeps the promises that `k8e.doors.engine.Engine` states and nothing else; mypy checks that it has the shape.
Each session is a directory; `/workspace` in commands and paths means that directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8e.byte_budget import Reserve, unlimited
from k8e.doors.engine import PoolStatus
from k8e.engine import gates as asking
from k8e.engine import lists, questions
from k8e.engine.approvals import Approval
from k8e.engine.events import EventPage
from k8e.engine.files import FilePage
from k8e.engine.recording import title
from k8e.engine.settings import EgressSettings
from k8e.errors import InvalidSpec, NotFound
from k8e.model import (
    Argv,
    Availability,
    Brokered,
    Code,
    Command,
    Decision,
    Denial,
    EgressMode,
    ExecResult,
    FileEntry,
    FileKind,
    Gates,
    ImageProgress,
    Language,
    Limits,
    Outcome,
    OwnerId,
    ProcessInfo,
    Reason,
    RunId,
    Runtime,
    SessionId,
    SessionSpec,
    Shell,
    Status,
    Template,
    TerminalId,
    TerminalSize,
    Usage,
)
from tests.support.fake_gates import FakeGates
from tests.support.fake_network import FakeCounts, FakeNetwork, denials
from tests.support.fake_secrets import FakeSecrets

__all__ = ["FakeEngine"]

INTERPRETERS = {Language.PYTHON: "python3", Language.BASH: "bash", Language.NODE: "node", Language.TS: "tsx"}
PIECE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOutput:
    channel: int
    offset: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSessionView:
    owner: OwnerId
    session_id: SessionId
    phase: str
    runtime: Runtime
    tenant: str
    image: str
    created_at: float
    expires_at: float
    idle_at: float
    env_keys: tuple[str, ...]
    secret_env_vars: tuple[str, ...]
    brokered: tuple[Brokered, ...]
    background_runs: int
    network: EgressMode
    allowed_hosts: tuple[str, ...]
    parent: SessionId | None
    children: tuple[SessionId, ...]
    limits: Limits
    warm: bool
    gates: Gates


@dataclass(slots=True, kw_only=True)
class FakeSession:
    owner: OwnerId
    spec: SessionSpec
    directory: Path
    created_at: float
    expires_at: float
    parent: SessionId | None = None
    children: list[SessionId] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class FakeRunView:
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
    egress_denied: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTerminalView:
    terminal_id: TerminalId
    session_id: SessionId
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeChange:
    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTranscript:
    output: str
    offset: int
    next_offset: int
    truncated_before: bool
    eof: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeWorkspace:
    owner: OwnerId
    tenant: str
    disk_bytes: int
    last_used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeStatus:
    runtimes: Mapping[Runtime, Availability]
    pool: Mapping[Template, PoolStatus]
    sessions: int
    egress: FakeCounts


def in_short(command: Command) -> str:
    return " ".join(title(command, ()).split())[:200]


def args_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def allow_unread_input(stdin: asyncio.StreamWriter) -> None:
    """A program need not read its input; until 3.11.5 asyncio tells the loop of that whenever garbage is collected."""
    closed: asyncio.Future[None] = stdin._protocol._stdin_closed  # type: ignore[attr-defined]
    closed.add_done_callback(lambda done: done.cancelled() or done.exception())


class FakeExec:
    """One host process whose output is read only as fast as it is asked for."""

    def __init__(self, exec_id: str, process: asyncio.subprocess.Process, timeout_s: float | None) -> None:
        self.exec_id = exec_id
        self.process = process
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self._reason = Reason.NONE
        self._timed_out = False
        self._items: asyncio.Queue[FakeOutput | None] = asyncio.Queue(1)
        self._output = b""

    @property
    def denied(self) -> tuple[Denial, ...]:
        return denials(self._output)

    async def __aiter__(self) -> AsyncIterator[FakeOutput | Outcome]:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(self._read(channel), name=f"read {channel}") for channel in (1, 2)]
            guard = group.create_task(self._guard(), name="time-out")
            open_streams = 2
            while open_streams:
                item = await self._items.get()
                if item is None:
                    open_streams -= 1
                else:
                    yield item
            guard.cancel()
            for reader in readers:
                reader.cancel()
        yield await self.outcome()

    async def outcome(self) -> Outcome:
        code = await self.process.wait()
        duration_ms = int((time.monotonic() - self._started) * 1000)
        if self._timed_out:
            return Outcome(status=Status.TIMED_OUT, exit_code=124, signal=9, duration_ms=duration_ms)
        if code < 0:
            return Outcome(
                status=Status.FAILED, exit_code=128 - code, signal=-code, reason=self._reason, duration_ms=duration_ms
            )
        return Outcome(status=Status.COMPLETED, exit_code=code, duration_ms=duration_ms)

    async def send(self, data: bytes) -> None:
        if self.process.stdin is not None:
            self.process.stdin.write(data)
            with contextlib.suppress(ConnectionError):
                await self.process.stdin.drain()

    async def send_eof(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def kill(self, signal: int = 9) -> None:
        if self.process.returncode is None:
            self._reason = Reason.KILLED
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal)

    async def close(self, *, kill: bool = True) -> None:
        if kill:
            await self.kill()
            await self.send_eof()
            # Output that nobody reads any more would hold the end back: asyncio waits for both.
            self.process._transport.close()  # type: ignore[attr-defined]
            await self.process.wait()

    async def _read(self, channel: int) -> None:
        stream = self.process.stdout if channel == 1 else self.process.stderr
        assert stream is not None
        offset = 0
        while data := await stream.read(PIECE):
            self._output += data
            await self._items.put(FakeOutput(channel=channel, offset=offset, payload=data))
            offset += len(data)
        await self._items.put(None)

    async def _guard(self) -> None:
        if not self._timeout_s:
            return
        await asyncio.sleep(self._timeout_s)
        self._timed_out = True
        await self.kill()


class FakeRun:
    def __init__(self, owner: OwnerId, view: FakeRunView, process: FakeExec) -> None:
        self.owner = owner
        self.view = view
        self.process = process
        self.changed = asyncio.Condition()

    async def collect(self) -> None:
        async for item in self.process:
            async with self.changed:
                if isinstance(item, Outcome):
                    self.view.outcome, self.view.status = item, item.status
                    self.view.egress_denied = self.process.denied
                elif item.channel == 1:
                    self.view.stdout += item.payload
                else:
                    self.view.stderr += item.payload
                self.changed.notify_all()


class FakeRunStream:
    """A run as one follower reads it."""

    def __init__(self, run: FakeRun, offsets: Mapping[int, int]) -> None:
        self._run = run
        self._offsets = offsets

    @property
    def truncated(self) -> bool:
        return self._run.view.truncated

    @property
    def denied(self) -> tuple[Denial, ...]:
        return self._run.view.egress_denied

    async def __aiter__(self) -> AsyncIterator[FakeOutput | Outcome]:
        run, at = self._run, dict(self._offsets)
        while True:
            async with run.changed:
                await run.changed.wait_for(lambda: _has_news(run.view, at))
                outcome = run.view.outcome
                news = {1: run.view.stdout[at[1] :], 2: run.view.stderr[at[2] :]}
            for channel, data in news.items():
                if data:
                    yield FakeOutput(channel=channel, offset=at[channel], payload=data)
                    at[channel] += len(data)
            if outcome is not None:
                yield outcome
                return


class FakeEngine(FakeGates, FakeSecrets, FakeNetwork):
    def __init__(self, root: Path, group: asyncio.TaskGroup) -> None:
        self._root = root
        self._group = group
        self._count = itertools.count(1)
        self._sessions: dict[SessionId, FakeSession] = {}
        self._runs: dict[RunId, FakeRun] = {}
        self._terminals: dict[TerminalId, tuple[OwnerId, SessionId, FakeExec]] = {}
        self.creates = 0
        self.graces: list[float] = []
        """What terminals were given to end by themselves."""
        super().__init__()

    async def close(self) -> None:
        """End every process."""
        for session_id, session in list(self._sessions.items()):
            if session_id in self._sessions:
                await self.destroy_session(session.owner, session_id)

    # Sessions

    async def create_session(self, owner: OwnerId, spec: SessionSpec, *, asked_by: str = "") -> FakeSessionView:
        if spec.runtime in {Runtime.KATA, Runtime.FIRECRACKER}:
            raise InvalidSpec(f"{spec.runtime} is not available on this host", field="runtime_class")
        spec = lists.resolved(spec, EgressSettings(rules=()))
        spec = await self.admitted(owner, asked_by, spec, default=SessionSpec())
        return self._add(owner, spec, self._root / f"work-{next(self._count)}")

    async def pull_image(self, owner: OwnerId, spec: SessionSpec) -> AsyncIterator[ImageProgress]:
        yield ImageProgress(phase="preparing")
        yield ImageProgress(phase="ready", image=spec.image)

    def get_session(self, owner: OwnerId, session_id: SessionId) -> FakeSessionView:
        return self._view(session_id, self._session(owner, session_id))

    def list_sessions(self, owner: OwnerId | None, phase: str | None = None) -> Sequence[FakeSessionView]:
        mine = {name: each for name, each in self._sessions.items() if owner in {None, each.owner}}
        return [self._view(name, each) for name, each in mine.items() if phase in {None, "Active"}]

    async def usage(self, sessions: Sequence[tuple[OwnerId, SessionId]]) -> Sequence[Usage]:
        return [Usage(cpu_s=0.5, memory_bytes=1024, processes=1) for _ in sessions]

    async def destroy_session(self, owner: OwnerId, session_id: SessionId) -> None:
        session = self._session(owner, session_id)
        for child in session.children:
            self._sessions.pop(child, None)
        for run in list(self._runs.values()):
            if run.view.session_id == session_id:
                await run.process.close()
        for _, owning, process in list(self._terminals.values()):
            if owning == session_id:
                await process.close()
        del self._sessions[session_id]
        if session.parent is None:
            shutil.rmtree(session.directory, ignore_errors=True)

    async def extend_session(
        self,
        owner: OwnerId,
        session_id: SessionId,
        *,
        ttl_s: float | None = None,
        idle_timeout_s: float | None = None,
    ) -> FakeSessionView:
        session = self._session(owner, session_id)
        session.expires_at = session.expires_at if ttl_s is None else time.time() + ttl_s
        return self._view(session_id, session)

    async def update_hosts(
        self,
        owner: OwnerId,
        session_id: SessionId,
        *,
        hosts: Sequence[str] = (),
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        asked_by: str = "",
    ) -> FakeSessionView:
        session = self._session(owner, session_id)
        changed = lists.changed(session.spec, hosts=hosts, add=add, remove=remove)
        if self._gates(session).egress and (wider := asking.widened(session.spec, changed)):
            await self.wait_at_gate(owner, session_id, asked_by, questions.hosts_question(wider))
        session.spec = changed
        return self._view(session_id, session)

    def egress(
        self, owner: OwnerId, session_id: SessionId, *, limit: int = 0, follow: bool = False
    ) -> AsyncIterator[Decision]:
        self._session(owner, session_id)
        return self.told(limit=limit, follow=follow)

    async def pip_install(
        self,
        owner: OwnerId,
        session_id: SessionId,
        packages: Sequence[str],
        *,
        asked_by: str = "",
        reserve: Reserve = unlimited,
    ) -> ExecResult:
        command = Command(what=Argv(("pip", "install", *packages)))
        await self._allowed(owner, session_id, asked_by, command)
        return self.installed(packages)

    async def run_subagent(self, owner: OwnerId, parent: SessionId, *, asked_by: str = "") -> FakeSessionView:
        session = self._session(owner, parent)
        spec = dataclasses.replace(session.spec, gates=self._gates(session))
        spec = await self.admitted(owner, asked_by, spec, parent=parent)
        child = self._add(owner, spec, session.directory, parent=parent)
        session.children.append(child.session_id)
        return child

    async def ask_approval(self, owner: OwnerId, asked_by: str, session_id: SessionId, action: str) -> Approval:
        self._session(owner, session_id)
        return self.asked_in(owner, session_id, asked_by, action)

    # Commands

    async def exec(
        self,
        owner: OwnerId,
        session_id: SessionId,
        command: Command,
        *,
        exec_id: str = "",
        asked_by: str = "",
        reserve: Reserve = unlimited,
    ) -> ExecResult:
        session = await self._allowed(owner, session_id, asked_by, command)
        stream = await self._start(session, command, exec_id)
        kept = {1: bytearray(), 2: bytearray()}
        try:
            async for item in stream:
                if isinstance(item, Outcome):
                    return self._result(session, kept, item)
                kept[item.channel] += item.payload
        finally:
            await stream.close()
        raise AssertionError("a command has an outcome")

    async def open_exec(
        self, owner: OwnerId, session_id: SessionId, command: Command, *, exec_id: str = "", asked_by: str = ""
    ) -> FakeExec:
        return await self._start(await self._allowed(owner, session_id, asked_by, command), command, exec_id)

    async def attach_exec(
        self, owner: OwnerId, session_id: SessionId, exec_id: str, offsets: Mapping[int, int], *, stop: bool = False
    ) -> FakeExec:
        self._session(owner, session_id)
        raise NotFound("exec", exec_id)

    async def write_input(
        self, owner: OwnerId, session_id: SessionId, exec_id: str, offset: int, data: bytes, *, is_last: bool
    ) -> tuple[int, bool]:
        self._session(owner, session_id)
        raise NotFound("exec", exec_id)

    async def start_run(
        self, owner: OwnerId, session_id: SessionId, command: Command, *, asked_by: str = ""
    ) -> FakeRunView:
        process = await self._start(await self._allowed(owner, session_id, asked_by, command), command)
        view = FakeRunView(
            run_id=RunId(f"run-{next(self._count)}"),
            session_id=session_id,
            status=Status.RUNNING,
            stdout=b"",
            stderr=b"",
            outcome=None,
            truncated=False,
            duration_ms=0,
            started_at=time.time(),
            command=in_short(command),
        )
        run = self._runs[view.run_id] = FakeRun(owner, view, process)
        self._group.create_task(run.collect(), name=view.run_id)
        return view

    def poll_run(self, owner: OwnerId, run_id: RunId) -> FakeRunView:
        return self._run(owner, run_id).view

    def polled_bytes(self, owner: OwnerId, run_id: RunId) -> int:
        run = self._run(owner, run_id).view
        return len(run.stdout) + len(run.stderr)

    def open_run(self, owner: OwnerId, run_id: RunId, offsets: Mapping[int, int]) -> FakeRunStream:
        return FakeRunStream(self._run(owner, run_id), offsets)

    async def kill_run(self, owner: OwnerId, run_id: RunId, signal: int = 9) -> None:
        await self._run(owner, run_id).process.kill(signal)

    def list_runs(self, owner: OwnerId, session_id: SessionId) -> Sequence[FakeRunView]:
        self._session(owner, session_id)
        return [run.view for run in self._runs.values() if run.view.session_id == session_id]

    # Terminals: a pipe stands in for the pty

    async def create_terminal(
        self,
        owner: OwnerId,
        session_id: SessionId,
        *,
        argv: tuple[str, ...],
        cwd: str,
        env: Mapping[str, str],
        size: TerminalSize,
        asked_by: str = "",
    ) -> FakeTerminalView:
        command = Command(what=Argv(argv), cwd=cwd, env=env, stdin=True, timeout_s=0)
        process = await self._start(await self._allowed(owner, session_id, asked_by, command), command)
        name = TerminalId(f"term-{next(self._count)}")
        self._terminals[name] = (owner, session_id, process)
        return FakeTerminalView(terminal_id=name, session_id=session_id, pid=process.process.pid)

    async def open_terminal(self, owner: OwnerId, terminal_id: TerminalId) -> AsyncIterator[bytes | Outcome]:
        async for item in self._terminal(owner, terminal_id):
            yield item if isinstance(item, Outcome) else item.payload

    async def write_terminal(self, owner: OwnerId, terminal_id: TerminalId, data: bytes) -> None:
        await self._terminal(owner, terminal_id).send(data)

    async def resize_terminal(self, owner: OwnerId, terminal_id: TerminalId, size: TerminalSize) -> None:
        self._terminal(owner, terminal_id)

    async def foreground(self, owner: OwnerId, terminal_id: TerminalId) -> tuple[int, bool]:
        return self._terminal(owner, terminal_id).process.pid, False

    async def signal_terminal(self, owner: OwnerId, terminal_id: TerminalId, signal: int) -> int:
        process = self._terminal(owner, terminal_id)
        await process.kill(signal)
        return process.process.pid

    async def destroy_terminal(self, owner: OwnerId, terminal_id: TerminalId, *, grace_s: float) -> None:
        await self._terminal(owner, terminal_id).close()
        self.graces.append(grace_s)
        del self._terminals[terminal_id]

    # Files

    async def read_file(
        self, owner: OwnerId, session_id: SessionId, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        real = self._real(owner, session_id, path)
        if not real.is_file():
            raise NotFound("file", path)
        data = real.read_bytes()[offset:][:length]
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]

    async def write_file(
        self,
        owner: OwnerId,
        session_id: SessionId,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        append: bool = False,
        perm: int | None = None,
        asked_by: str = "",
    ) -> int:
        real = self._real(owner, session_id, path)
        data = b"".join([chunk async for chunk in chunks])
        if places := self._held(owner, session_id, path):
            digest = hashlib.sha256(data).hexdigest()
            action = questions.write_question(path, places, size=len(data), sha256=digest, append=append, perm=perm)
            await self.wait_at_gate(owner, session_id, asked_by, action)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes((real.read_bytes() if append and real.exists() else b"") + data)
        real.chmod(0o644 if perm is None else perm)
        return real.stat().st_size

    async def stat_file(self, owner: OwnerId, session_id: SessionId, path: str, *, follow: bool = True) -> FileEntry:
        real = self._real(owner, session_id, path)
        if not os.path.lexists(real):
            raise NotFound("file", path)
        return self._entry(self._session(owner, session_id), real)

    async def list_files(
        self,
        owner: OwnerId,
        session_id: SessionId,
        path: str,
        *,
        recursive: bool = False,
        since_s: float = 0,
        after: str = "",
        most: int = 0,
    ) -> FilePage:
        session = self._session(owner, session_id)
        real = self._real(owner, session_id, path)
        found = [self._entry(session, each) for each in sorted(real.rglob("*") if recursive else real.iterdir())]
        wanted = [entry for entry in found if entry.modified_s >= since_s and (not after or entry.path > after)]
        return FilePage(wanted[:most] if most else wanted, wanted[most - 1].path if 0 < most < len(wanted) else "")

    async def make_directory(self, owner: OwnerId, session_id: SessionId, path: str, *, asked_by: str = "") -> None:
        if not self._real(owner, session_id, path).is_dir():
            await self._change(owner, session_id, asked_by, "make the directory", path)
        self._real(owner, session_id, path).mkdir(parents=True, exist_ok=True)

    async def move_file(
        self, owner: OwnerId, session_id: SessionId, source: str, target: str, *, asked_by: str = ""
    ) -> None:
        await self._change(owner, session_id, asked_by, "move", source, target)
        real = self._real(owner, session_id, source)
        if not os.path.lexists(real):
            raise NotFound("file", source)
        real.rename(self._real(owner, session_id, target))

    async def remove_file(
        self, owner: OwnerId, session_id: SessionId, path: str, *, recursive: bool = False, asked_by: str = ""
    ) -> None:
        await self._change(owner, session_id, asked_by, "remove", path)
        real = self._real(owner, session_id, path)
        if not os.path.lexists(real):
            raise NotFound("file", path)
        if recursive and real.is_dir():
            shutil.rmtree(real)
        else:
            real.unlink()

    async def watch(
        self, owner: OwnerId, session_id: SessionId, path: str, *, recursive: bool = False
    ) -> AsyncIterator[FakeChange]:
        real = self._real(owner, session_id, path)
        seen = set(real.iterdir())
        while True:
            for new in sorted(set(real.iterdir()) - seen):
                seen.add(new)
                yield FakeChange(kind="create", path=f"{path}/{new.name}")
            await asyncio.sleep(0.01)

    # What happened, and the rest

    async def processes(self, owner: OwnerId, session_id: SessionId) -> Sequence[ProcessInfo]:
        self._session(owner, session_id)
        running = [each for each in self._runs.values() if each.view.session_id == session_id and not each.view.outcome]
        pids = [run.process.process.pid for run in running]
        return [ProcessInfo(pid=pid, comm="sh", state="S", args=args_of(pid)) for pid in pids]

    def transcript(self, owner: OwnerId, session_id: SessionId, *, offset: int, limit: int) -> FakeTranscript:
        text = "".join(f"{event}\n" for event in self._session(owner, session_id).events)
        offset = min(offset, len(text))
        part = text[offset : offset + limit]
        end = offset + len(part)
        return FakeTranscript(output=part, offset=offset, next_offset=end, truncated_before=False, eof=end == len(text))

    async def events(self, owner: OwnerId, session_id: SessionId, *, limit: int, before: int = 0) -> EventPage:
        known = self._session(owner, session_id).events
        end = before or len(known)
        return EventPage(known[max(end - limit, 0) : end], max(end - limit, 0))

    def list_workspaces(self, owner: OwnerId | None) -> Sequence[FakeWorkspace]:
        found = {(each.owner, each.spec.tenant) for each in self._sessions.values() if owner in {None, each.owner}}
        return [FakeWorkspace(owner=who, tenant=name, disk_bytes=0, last_used=0) for who, name in sorted(found) if name]

    async def delete_workspace(self, owner: OwnerId, tenant: str, *, asked_by: str = "") -> None:
        raise NotFound("workspace", tenant)

    def status(self) -> FakeStatus:
        works = Availability(available=True, detail="fake")
        return FakeStatus(runtimes={Runtime.GVISOR: works}, pool={}, sessions=len(self._sessions), egress=FakeCounts())

    # Inside

    def _add(
        self, owner: OwnerId, spec: SessionSpec, directory: Path, parent: SessionId | None = None
    ) -> FakeSessionView:
        self.creates += 1
        session_id = SessionId(spec.session_id if spec.session_id and not parent else f"sess-{next(self._count)}")
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        session = FakeSession(
            owner=owner,
            spec=spec,
            directory=directory,
            created_at=now,
            expires_at=now + (spec.limits.ttl_s or math.inf),
            parent=parent,
        )
        self._sessions[session_id] = session
        return self._view(session_id, session)

    def _view(self, session_id: SessionId, session: FakeSession) -> FakeSessionView:
        spec = session.spec
        return FakeSessionView(
            owner=session.owner,
            session_id=session_id,
            phase="Active",
            runtime=spec.runtime,
            tenant=spec.tenant,
            image=spec.image,
            created_at=session.created_at,
            expires_at=session.expires_at,
            idle_at=math.inf,
            env_keys=tuple(sorted(spec.env)),
            secret_env_vars=tuple(ref.env_var for ref in spec.secret_refs),
            brokered=spec.brokered,
            background_runs=sum(run.view.session_id == session_id for run in self._runs.values()),
            network=spec.network,
            allowed_hosts=spec.allowed_hosts,
            parent=session.parent,
            children=tuple(session.children),
            limits=spec.limits,
            warm=True,
            gates=self._gates(session),
        )

    def _gates(self, session: FakeSession) -> Gates:
        return self.gates_of(session.owner, session.spec)

    async def _allowed(self, owner: OwnerId, session_id: SessionId, asked_by: str, command: Command) -> FakeSession:
        session = self._session(owner, session_id)
        await self.gate_command(owner, session_id, session.spec, asked_by, command)
        return session

    def _held(self, owner: OwnerId, session_id: SessionId, *paths: str, above: bool = False) -> list[str]:
        """Where these paths really are, by their letters and by their links, as far as that is gated."""
        session = self._session(owner, session_id)
        top = session.directory.resolve()
        real = [self._real(owner, session_id, path).resolve() for path in paths]
        inside = [f"/workspace/{each.relative_to(top)}" for each in real if each.is_relative_to(top)]
        return [path for path in (*paths, *inside) if asking.is_held(self._gates(session), path, above=above)]

    async def _change(self, owner: OwnerId, session_id: SessionId, asked_by: str, verb: str, *paths: str) -> None:
        if places := self._held(owner, session_id, *paths, above=verb != "make the directory"):
            await self.wait_at_gate(owner, session_id, asked_by, questions.file_question(verb, paths, places))

    def _session(self, owner: OwnerId, session_id: SessionId) -> FakeSession:
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise NotFound("session", session_id)
        return session

    def _run(self, owner: OwnerId, run_id: RunId) -> FakeRun:
        run = self._runs.get(run_id)
        if run is None or run.owner != owner:
            raise NotFound("run", run_id)
        return run

    def _terminal(self, owner: OwnerId, terminal_id: TerminalId) -> FakeExec:
        found = self._terminals.get(terminal_id)
        if found is None or found[0] != owner:
            raise NotFound("terminal", terminal_id)
        return found[2]

    def _real(self, owner: OwnerId, session_id: SessionId, path: str) -> Path:
        relative = path.removeprefix("/workspace").lstrip("/")
        return self._session(owner, session_id).directory / relative

    def _entry(self, session: FakeSession, real: Path) -> FileEntry:
        facts = real.lstat()
        kinds = ((real.is_symlink(), FileKind.SYMLINK), (real.is_dir(), FileKind.DIRECTORY))
        return FileEntry(
            path=f"/workspace/{real.relative_to(session.directory)}",
            kind=next((kind for fits, kind in kinds if fits), FileKind.FILE),
            size=facts.st_size,
            modified_s=facts.st_mtime,
            mode=facts.st_mode & 0o7777,
            target=str(real.readlink()) if real.is_symlink() else "",
        )

    def _result(self, session: FakeSession, kept: Mapping[int, bytearray], outcome: Outcome) -> ExecResult:
        limit = session.spec.limits.output_bytes
        session.events.append(json.dumps({"time": time.time(), "event": "exec.ended", "exit_code": outcome.exit_code}))
        return ExecResult(
            stdout=bytes(kept[1][:limit]),
            stderr=bytes(kept[2][:limit]),
            outcome=outcome,
            truncated=max(len(each) for each in kept.values()) > limit,
            egress_denied=denials(bytes(kept[1] + kept[2])),
        )

    async def _start(self, session: FakeSession, command: Command, exec_id: str = "") -> FakeExec:
        relative = command.cwd.removeprefix("/workspace").lstrip("/")
        argv = self._argv(session, command)
        secrets = self.secret_env(session.owner, session.spec.secret_refs)
        spawning = asyncio.create_subprocess_exec(
            *argv,
            cwd=session.directory / relative,
            env={"PATH": os.defpath + ":/usr/local/bin", **session.spec.env, **secrets, **command.env},
            stdin=asyncio.subprocess.PIPE if command.stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        process = await self._spawned(spawning)
        if process.stdin is not None:
            allow_unread_input(process.stdin)
        timeout_s = session.spec.limits.command_timeout_s if command.timeout_s is None else command.timeout_s
        return FakeExec(exec_id or f"exec-{next(self._count)}", process, timeout_s)

    async def _spawned(self, spawning: Coroutine[Any, Any, asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
        """Python 3.11 waits for ever when it is cancelled in the midst of this, so it is let through to its end."""
        started = asyncio.get_running_loop().create_task(spawning, name="spawning")
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            (await started).kill()
            raise

    def _argv(self, session: FakeSession, command: Command) -> list[str]:
        match command.what:
            case Argv(argv):
                return list(argv)
            case Shell(text):
                return ["/bin/sh", "-c", text]
            case Code(language, text):
                program = self._root / f"program-{next(self._count)}"
                program.write_bytes(text.encode("utf-8", "surrogateescape"))
                return [INTERPRETERS[language], str(program)]


def _has_news(view: FakeRunView, at: Mapping[int, int]) -> bool:
    return view.outcome is not None or len(view.stdout) > at[1] or len(view.stderr) > at[2]
