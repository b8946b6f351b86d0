"""The engine's face: everything a door may ask for, each call made by an owner about what is its own.

Doors translate; the engine decides who may touch what and hands over to the part that knows how. It outlives every
request: cancelling a call cancels what the call was waiting for, never the bookkeeping.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from k8e.byte_budget import Reserve, unlimited
from k8e.engine import ceilings, lists
from k8e.engine.apply_recovery import read_kept, recover
from k8e.engine.approvals import Approval, Approvals
from k8e.engine.commands import Commands, processes
from k8e.engine.egress import Egress, EgressCounts
from k8e.engine.events import EventLog, EventPage
from k8e.engine.files import FileChange, FilePage, Files
from k8e.engine.gatekeeper import AtGate, Gatekeeper, unwitnessed
from k8e.engine.gateway import gateway_id
from k8e.engine.images import Images
from k8e.engine.labels import Selector, has_all
from k8e.engine.observing import UNOBSERVED, Observer
from k8e.engine.packages import pip_install
from k8e.engine.ports import PortConnection, Ports
from k8e.engine.process import Follower, Process, ProcessView
from k8e.engine.questions import write_question
from k8e.engine.runs import Runs, RunStream, RunView
from k8e.engine.sandbox_watch import SandboxWatch
from k8e.engine.secrets import Sealer, Secrets, SecretView
from k8e.engine.session import Session, SessionView
from k8e.engine.sessions import Sessions
from k8e.engine.settings import EngineSettings
from k8e.engine.spools import Spools
from k8e.engine.store import Store
from k8e.engine.substrate import PoolStatus, Substrate
from k8e.engine.terminals import Terminals, TerminalView
from k8e.engine.transcript import TranscriptPage
from k8e.engine.workspaces import Workspaces, WorkspaceView
from k8e.errors import Conflict, InvalidSpec, K8eError, NotFound
from k8e.lifecycle import Phase
from k8e.model import (
    Argv,
    Availability,
    Claim,
    Command,
    Decision,
    ExecResult,
    FileEntry,
    ImageProgress,
    Outcome,
    OwnerId,
    ProcessInfo,
    Runtime,
    SessionId,
    SessionSpec,
    Template,
    TerminalSize,
    Usage,
)
from k8e.tasks import Tasks

__all__ = ["Engine", "EngineStatus"]

_log = logging.getLogger(__name__)

_REMEMBER_USE_EVERY_S: Final = 30.0
_DEFAULT_EVENTS: Final = 500
_MAX_EVENTS: Final = 10_000
_NOTHING: Final = Usage(cpu_s=0.0, memory_bytes=0, processes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    runtimes: Mapping[Runtime, Availability]
    pool: Mapping[Template, PoolStatus]
    sessions: int
    egress: EgressCounts = field(default_factory=EgressCounts)
    live: Mapping[Runtime, int] = field(default_factory=dict)
    """Sessions in use."""
    background_runs: int = 0
    recorded_bytes: int = 0
    """Output that is held in memory until its command ends and it is written to the transcript."""


class Engine:
    """Use `async with Engine.open(...)`."""

    def __init__(
        self,
        settings: EngineSettings,
        substrate: Substrate,
        tasks: Tasks,
        sealer: Sealer | None = None,
        observer: Observer = UNOBSERVED,
        at_gate: AtGate = unwitnessed,
    ) -> None:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        quotas = settings.quotas
        self._settings = settings
        self._substrate = substrate
        self._tasks = tasks
        self._observer = observer
        self._store = Store(settings.data_dir / "engine.sqlite")
        self._events = EventLog(settings.data_dir / "events.sqlite", settings.kept)
        self._workspaces = Workspaces(self._store, substrate, per_owner=quotas.workspaces)
        self._secrets = Secrets(settings.data_dir / "secrets.sqlite", sealer)
        self._approvals = Approvals(settings.data_dir / "approvals.sqlite", tasks, quotas, valid_s=settings.approval_s)
        self._egress = Egress(self._events, substrate.settle_decisions)
        self._watch = SandboxWatch(substrate)
        self._sessions = Sessions(
            settings,
            self._store,
            self._events,
            substrate,
            self._watch,
            self._workspaces,
            self._secrets,
            self._egress,
            tasks,
        )
        self._sessions.observer = observer
        self._gatekeeper = Gatekeeper(settings, self._approvals, self._workspaces, self._events, observer, at_gate)
        self._images = Images(substrate, tasks)
        self._spools = Spools(settings.data_dir)
        self._commands = Commands(
            self._sessions, self._secrets, self._egress, self._events, tasks, at_once=quotas.execs_per_session
        )
        self._runs = Runs(
            self._store,
            self._sessions,
            self._commands,
            tasks,
            per_session=quotas.runs_per_session,
            kept=settings.kept,
        )
        self._terminals = Terminals(self._store, self._commands, tasks, per_session=quotas.terminals_per_session)
        self._ports = Ports(per_session=quotas.ports_per_session)
        self._runtimes: Mapping[Runtime, Availability] = {}
        self._sessions.on_end = self._session_ends

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        settings: EngineSettings,
        substrate: Substrate,
        sealer: Sealer | None = None,
        observer: Observer = UNOBSERVED,
        at_gate: AtGate = unwitnessed,
    ) -> AsyncIterator[Engine]:
        """An engine that has taken back what survived; leaving keeps every session for the next start.

        Without a sealer it keeps no secrets.
        """
        with contextlib.ExitStack() as after_the_tasks:
            async with Tasks() as tasks:
                engine = cls(settings, substrate, tasks, sealer, observer, at_gate)
                after_the_tasks.callback(engine._close)
                try:
                    await engine._begin()
                    yield engine
                finally:
                    await engine._let_go()

    async def destroy_all(self) -> None:
        """Remove every session and every warm sandbox, for an operator who wants the machine clean."""
        for session in self._sessions:
            if session.parent is None:
                with contextlib.suppress(K8eError):
                    await self._sessions.destroy(session, why="server removed")
        await self._substrate.clear()

    # Sessions

    async def create_session(self, owner: OwnerId, spec: SessionSpec, *, asked_by: str = "") -> SessionView:
        spec = dataclasses.replace(spec, gates=self._gatekeeper.specified(owner, spec))
        admit = functools.partial(self._gatekeeper.creation, owner, asked_by)
        return self._view(await self._sessions.create(owner, spec, admit))

    def pull_image(self, owner: OwnerId, spec: SessionSpec) -> AsyncIterator[ImageProgress]:
        """Get the image ready that a session like this would have."""
        return self._images.pull(owner, spec.template())

    def get_session(self, owner: OwnerId, session_id: str) -> SessionView:
        return self._view(self._sessions.find(owner, session_id))

    def list_sessions(
        self, owner: OwnerId | None, phase: str | None = None, labels: Sequence[Selector] = ()
    ) -> list[SessionView]:
        """An owner's, or everybody's, that have all of these labels; oldest first."""
        found = self._sessions.of(owner) if owner is not None else list(self._sessions)
        shown = [session for session in found if session.phase is not Phase.CREATING]
        views = [self._view(session) for session in shown if has_all(session.spec.labels, labels)]
        return sorted((view for view in views if phase in (None, view.phase)), key=lambda view: view.created_at)

    async def usage(self, sessions: Sequence[tuple[OwnerId, SessionId]]) -> list[Usage]:
        """What each of these sessions uses now; one that is gone uses nothing."""
        views = [session.view() for session in self._sessions]
        sandboxes = {(view.owner, view.session_id): view.sandbox for view in views if view.sandbox is not None}
        wanted = [sandboxes.get(session) for session in sessions]
        read = await self._substrate.usage([each for each in wanted if each is not None])
        return [read[each] if each is not None else _NOTHING for each in wanted]

    async def destroy_session(self, owner: OwnerId, session_id: str) -> None:
        await self._sessions.destroy(self._sessions.find(owner, session_id))

    async def extend_session(
        self, owner: OwnerId, session_id: str, *, ttl_s: float | None = None, idle_timeout_s: float | None = None
    ) -> SessionView:
        session = self._sessions.find(owner, session_id)
        await self._sessions.extend(session, ttl_s=ttl_s, idle_timeout_s=idle_timeout_s)
        return self._view(session)

    async def update_labels(
        self, owner: OwnerId, session_id: str, *, set: Mapping[str, str], remove: Sequence[str] = ()
    ) -> SessionView:
        """Change a session's labels; those to remove need not be there."""
        session = self._sessions.find(owner, session_id)
        await self._sessions.relabel(session, set=set, remove=remove)
        return self._view(session)

    async def update_hosts(
        self,
        owner: OwnerId,
        session_id: str,
        *,
        hosts: Sequence[str] = (),
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        asked_by: str = "",
    ) -> SessionView:
        """Change the list, in force on return: add and remove entries, or without either give the whole of it."""
        session = self._sessions.find(owner, session_id)
        change = functools.partial(lists.changed, hosts=hosts, add=add, remove=remove)
        approved = await self._gatekeeper.hosts(session, asked_by, change(session.spec))

        def as_approved(spec: SessionSpec) -> SessionSpec:
            changed = change(spec)
            self._gatekeeper.check_hosts(session, changed, approved)
            return changed

        await self._sessions.respecify(session, as_approved)
        return self._view(session)

    def egress(
        self, owner: OwnerId, session_id: str, *, limit: int = 0, follow: bool = False
    ) -> AsyncIterator[Decision]:
        """What the session asked of the network, oldest first; then on, until it ends."""
        box = self._sessions.find(owner, session_id).box
        if box is None:
            raise NotFound("session", session_id)
        return self._egress.follow(box.id, limit=limit, onwards=follow)

    async def run_subagent(self, owner: OwnerId, parent_id: str, *, asked_by: str = "") -> SessionView:
        parent = self._sessions.find(owner, parent_id)
        admit = functools.partial(self._gatekeeper.child, parent, asked_by)
        return self._view(await self._sessions.create_child(owner, parent_id, admit))

    # Commands

    async def exec(
        self,
        owner: OwnerId,
        session_id: str,
        command: Command,
        *,
        stdin: bytes = b"",
        exec_id: str = "",
        asked_by: str = "",
        reserve: Reserve = unlimited,
    ) -> ExecResult:
        """Run to the end. Asked again with the same `exec_id`, it returns the same command's result.

        `reserve` is asked before output is held; what it refuses is dropped, and the result says so.
        """
        command = dataclasses.replace(command, stdin=command.stdin or bool(stdin))
        session, is_known = await self._admitted(owner, session_id, command, asked_by, exec_id)
        return await self._commands.run(
            session, command, stdin=stdin, exec_id=exec_id, is_known=is_known, reserve=reserve
        )

    async def open_exec(
        self, owner: OwnerId, session_id: str, command: Command, *, exec_id: str = "", asked_by: str = ""
    ) -> Process:
        session, is_known = await self._admitted(owner, session_id, command, asked_by, exec_id)
        return await self._commands.open(session, command, exec_id=exec_id, is_known=is_known)

    async def attach_exec(
        self, owner: OwnerId, session_id: str, exec_id: str, offsets: Mapping[int, int], *, stop: bool = False
    ) -> Process:
        """A foreground command's output again, in place of who read it; `stop` is for callers who end it when they leave."""
        session = self._sessions.find(owner, session_id)
        if exec_id in self._kept_processes(session):
            raise InvalidSpec(
                f"must be set for {exec_id}, whose output is kept for any number of readers", field="follow"
            )
        return await self._commands.take_over(session, exec_id, offsets, stop=stop)

    async def follow_exec(
        self, owner: OwnerId, session_id: str, exec_id: str, offsets: Mapping[int, int] | None = None
    ) -> Follower:
        """Any process's output, beside whoever else reads it; it does not wait for this reader."""
        session = self._sessions.find(owner, session_id)
        process = self._kept_processes(session).get(exec_id)
        if process is not None:
            return Follower(process.follow(offsets or {}, waits=False), offsets or {}, process=process)
        return await self._commands.follow(session, exec_id, offsets or {})

    def _kept_processes(self, session: Session) -> Mapping[str, Process]:
        """Its background runs and terminals, by their ids."""
        runs = [run.process for run in self._runs.of(session)]
        terminals = [terminal.process for terminal in self._terminals.of(session)]
        return {process.id: process for process in (*runs, *terminals)}

    async def list_execs(self, owner: OwnerId, session_id: str) -> list[ProcessView]:
        """Every command, background run and terminal's program of a session that its sandbox knows."""
        session = self._sessions.find(owner, session_id)
        return await self._commands.views(session, self._kept_processes(session))

    async def signal_exec(self, owner: OwnerId, session_id: str, exec_id: str, signal: int) -> None:
        """Signal any of them; 9 ends everything it started."""
        await self._commands.signal(self._sessions.find(owner, session_id), exec_id, signal)

    async def append_input(
        self, owner: OwnerId, session_id: str, exec_id: str, data: bytes, *, is_last: bool = False
    ) -> tuple[bool, bool]:
        """Input for any of them, behind all that anybody gave: whether it was taken, and whether it reads on."""
        return await self._commands.append_input(self._sessions.find(owner, session_id), exec_id, data, is_last=is_last)

    async def write_input(
        self, owner: OwnerId, session_id: str, exec_id: str, offset: int, data: bytes, *, is_last: bool
    ) -> tuple[int, bool]:
        """Input for a command that was started with a name and `stdin`: how much was taken, and whether it reads on."""
        return await self._commands.write_input(
            self._sessions.find(owner, session_id), exec_id, offset, data, is_last=is_last
        )

    async def pip_install(
        self,
        owner: OwnerId,
        session_id: str,
        packages: Sequence[str],
        *,
        asked_by: str = "",
        reserve: Reserve = unlimited,
    ) -> ExecResult:
        """Install packages by name into the session's own Python environment."""
        return await self.exec(owner, session_id, pip_install(packages), asked_by=asked_by, reserve=reserve)

    # Background runs

    async def start_run(self, owner: OwnerId, session_id: str, command: Command, *, asked_by: str = "") -> RunView:
        session, _ = await self._admitted(owner, session_id, command, asked_by)
        return (await self._runs.start(session, command)).view(output_bytes=0)

    async def poll_run(self, owner: OwnerId, run_id: str) -> RunView:
        run = self._runs.find(owner, run_id)
        view = functools.partial(run.view, output_bytes=run.session.spec.limits.output_bytes)
        return await self._sessions.files.read(owner, view)

    def polled_bytes(self, owner: OwnerId, run_id: str) -> int:
        """How much output a view of it would have now."""
        run = self._runs.find(owner, run_id)
        return run.output.viewed_bytes(run.session.spec.limits.output_bytes)

    def list_runs(self, owner: OwnerId, session_id: str) -> list[RunView]:
        return [run.view(output_bytes=0) for run in self._runs.of(self._sessions.find(owner, session_id))]

    def open_run(self, owner: OwnerId, run_id: str, offsets: Mapping[int, int] | None = None) -> RunStream:
        return RunStream(self._runs.find(owner, run_id), offsets or {})

    async def kill_run(self, owner: OwnerId, run_id: str, signal: int = 9) -> None:
        await self._runs.kill(self._runs.find(owner, run_id), signal)

    # Terminals

    async def create_terminal(
        self,
        owner: OwnerId,
        session_id: str,
        *,
        argv: Sequence[str],
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        size: TerminalSize | None = None,
        asked_by: str = "",
    ) -> TerminalView:
        command = Command(
            what=Argv(tuple(argv) or ("/bin/bash",)),
            cwd=cwd,
            env=env or {},
            stdin=True,
            terminal=size or TerminalSize(),
        )
        session, _ = await self._admitted(owner, session_id, command, asked_by)
        return (await self._terminals.create(session, command)).view()

    def open_terminal(self, owner: OwnerId, terminal_id: str) -> AsyncIterator[bytes | Outcome]:
        return self._terminals.find(owner, terminal_id).show()

    async def write_terminal(self, owner: OwnerId, terminal_id: str, data: bytes) -> None:
        await self._terminals.find(owner, terminal_id).write(data)

    async def resize_terminal(self, owner: OwnerId, terminal_id: str, size: TerminalSize) -> None:
        await self._terminals.find(owner, terminal_id).resize(size)

    async def foreground(self, owner: OwnerId, terminal_id: str) -> tuple[int, bool]:
        return await self._terminals.find(owner, terminal_id).foreground()

    async def signal_terminal(self, owner: OwnerId, terminal_id: str, signal: int) -> int:
        """Signal the foreground group and return it."""
        terminal = self._terminals.find(owner, terminal_id)
        group, _ = await terminal.foreground()
        await terminal.signal(signal)
        return group

    async def destroy_terminal(self, owner: OwnerId, terminal_id: str, *, grace_s: float = 0.0) -> None:
        await self._terminals.destroy(self._terminals.find(owner, terminal_id), grace_s=grace_s)

    # Ports

    async def open_port(self, owner: OwnerId, session_id: str, port: int) -> PortConnection:
        """A connection to a server on the loopback of the session's sandbox; whoever opens it closes it."""
        return await self._ports.open(self._sessions.find(owner, session_id), port)

    # Files

    def read_file(
        self, owner: OwnerId, session_id: str, path: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncIterator[bytes]:
        return self._files(owner, session_id).read(path, offset=offset, length=length)

    async def write_file(
        self,
        owner: OwnerId,
        session_id: str,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        append: bool = False,
        perm: int | None = None,
        asked_by: str = "",
    ) -> int:
        session = self._sessions.find(owner, session_id)
        guard, is_gated = await self._gatekeeper.held(session, "append" if append else "write", path=path)
        async with contextlib.AsyncExitStack() as held:
            if is_gated:
                content = await held.enter_async_context(self._spools.hold(owner, chunks))
                question = write_question(
                    path, guard.approved, size=content.size, sha256=content.sha256, append=append, perm=perm
                )
                await self._gatekeeper.ask(session, asked_by, question)
                chunks = content.chunks()
            size = await _files(session).write(path, chunks, append=append, perm=perm, guard=guard)
        self._events.add(owner, session_id, "file.written", path=path, size=size, append=append)
        return size

    async def stat_file(self, owner: OwnerId, session_id: str, path: str, *, follow: bool = True) -> FileEntry:
        return await self._files(owner, session_id).stat(path, follow=follow)

    async def list_files(
        self,
        owner: OwnerId,
        session_id: str,
        path: str,
        *,
        recursive: bool = False,
        since_s: float = 0.0,
        after: str = "",
        most: int = 0,
    ) -> FilePage:
        """One page of a listing; the next one begins after where this one says."""
        files = self._files(owner, session_id)
        return await files.list(path, recursive=recursive, since_s=since_s, after=after, most=most)

    async def make_directory(self, owner: OwnerId, session_id: str, path: str, *, asked_by: str = "") -> None:
        session = self._sessions.find(owner, session_id)
        guard = await self._gatekeeper.change(session, asked_by, "mkdir", path=path)
        await _files(session).make_directory(path, guard=guard)

    async def move_file(self, owner: OwnerId, session_id: str, source: str, target: str, *, asked_by: str = "") -> None:
        session = self._sessions.find(owner, session_id)
        guard = await self._gatekeeper.change(session, asked_by, "move", source=source, target=target)
        await _files(session).move(source, target, guard=guard)
        self._events.add(owner, session_id, "file.moved", source=source, target=target)

    async def remove_file(
        self, owner: OwnerId, session_id: str, path: str, *, recursive: bool = False, asked_by: str = ""
    ) -> None:
        session = self._sessions.find(owner, session_id)
        also = " with everything below it" if recursive else ""
        guard = await self._gatekeeper.change(session, asked_by, "remove", also=also, path=path)
        await _files(session).remove(path, recursive=recursive, guard=guard)
        self._events.add(owner, session_id, "file.removed", path=path)

    def watch(
        self, owner: OwnerId, session_id: str, path: str, *, recursive: bool = False
    ) -> AsyncIterator[FileChange]:
        return self._files(owner, session_id).watch(path, recursive=recursive)

    # Looking in

    async def processes(self, owner: OwnerId, session_id: str) -> list[ProcessInfo]:
        return await processes(self._sessions.find(owner, session_id))

    async def transcript(self, owner: OwnerId, session_id: str, *, offset: int = 0, limit: int = 0) -> TranscriptPage:
        transcript = self._sessions.transcript(self._sessions.find(owner, session_id))
        return await self._sessions.files.run(functools.partial(transcript.read, offset, limit))

    async def events(self, owner: OwnerId, session_id: str, *, limit: int = 0, before: int = 0) -> EventPage:
        """The newest events of a session, or the newest before one of them."""
        session = self._sessions.find(owner, session_id)
        most = min(limit or _DEFAULT_EVENTS, _MAX_EVENTS)
        return await self._events.read(owner, session.session_id, most, before=before)

    def list_workspaces(self, owner: OwnerId | None) -> list[WorkspaceView]:
        return self._workspaces.list(owner)

    async def delete_workspace(self, owner: OwnerId, tenant: str, *, asked_by: str = "") -> None:
        self._check_unused(owner, tenant)
        await self._gatekeeper.workspace(owner, asked_by, self._workspaces.find(owner, tenant))
        # Somebody may have begun to use it while the question waited.
        self._check_unused(owner, tenant)
        await self._tasks.finish(self._delete_workspace(owner, tenant), name=f"delete workspace {tenant}")

    async def _delete_workspace(self, owner: OwnerId, tenant: str) -> None:
        await self._workspaces.delete(owner, tenant)
        self._events.add(owner, "", "workspace.deleted", tenant=tenant)

    # Secrets

    async def set_secret(self, owner: OwnerId, name: str, key: str, value: bytes) -> None:
        await self._tasks.finish(self._set_secret(owner, name, key, value), name=f"set secret {name}")

    async def _set_secret(self, owner: OwnerId, name: str, key: str, value: bytes) -> None:
        await self._secrets.set(owner, name, key, value)
        self._events.add(owner, "", "secret.set", name=name, key=key)
        await self._sessions.renew_secrets(owner, name)

    def list_secrets(self, owner: OwnerId | None) -> list[SecretView]:
        return self._secrets.list(owner)

    async def delete_secret(self, owner: OwnerId, name: str, key: str = "") -> bool:
        """Forget one key, or the whole secret; False when there was nothing."""
        return await self._tasks.finish(self._delete_secret(owner, name, key), name=f"delete secret {name}")

    async def _delete_secret(self, owner: OwnerId, name: str, key: str) -> bool:
        deleted = await self._secrets.delete(owner, name, key)
        if deleted:
            self._events.add(owner, "", "secret.deleted", name=name, key=key)
            await self._sessions.renew_secrets(owner, name)
        return deleted

    # Approvals

    async def ask_approval(self, owner: OwnerId, asked_by: str, session_id: str, action: str) -> Approval:
        """Put a question to whoever may decide for this owner and is not the one that asks."""
        session = self._sessions.find(owner, session_id)
        sandbox = session.live_box().id
        asked = await self._approvals.ask(owner, session.session_id, sandbox, asked_by=asked_by, action=action)
        self._events.add(
            owner, session_id, "approval.asked", approval_id=asked.approval_id, action=action, asked_by=asked_by
        )
        self._observer.approval(asked.status)
        return asked

    def get_approval(self, owner: OwnerId, approval_id: str) -> Approval:
        return self._approvals.find(owner, approval_id)

    async def wait_approval(self, owner: OwnerId, approval_id: str, timeout_s: float | None = None) -> Approval:
        """The question once it is decided or expired; a caller that leaves, leaves it as it is."""
        return await self._approvals.wait(owner, approval_id, timeout_s=timeout_s)

    async def decide_approval(
        self, owner: OwnerId, decided_by: str, approval_id: str, approved: bool, reason: str = ""
    ) -> Approval:
        before = self._approvals.find(owner, approval_id)
        decided = await self._approvals.decide(
            owner, approval_id, decided_by=decided_by, approved=approved, reason=reason
        )
        if decided != before:
            self._observer.approval(decided.status)
            self._events.add(
                owner,
                decided.session_id,
                "approval.decided",
                approval_id=approval_id,
                approved=approved,
                decided_by=decided_by,
                reason=reason,
            )
        return decided

    def list_approvals(self, owner: OwnerId | None, all: bool = False) -> list[Approval]:
        return self._approvals.of(owner, finished=all)

    def status(self) -> EngineStatus:
        return EngineStatus(
            runtimes=self._runtimes,
            pool=self._substrate.pool(),
            sessions=len(self._sessions),
            egress=self._egress.counts(),
            live=collections.Counter(
                session.spec.runtime for session in self._sessions if session.phase is Phase.ACTIVE
            ),
            background_runs=sum(session.runs for session in self._sessions),
            recorded_bytes=self._commands.recorded_bytes(),
        )

    # The engine's own life

    async def _begin(self) -> None:
        kept = read_kept(self._store)
        self._sessions.gateway = gateway_id(self._settings.data_dir / "gateway")
        await self._substrate.begin(
            self._tasks,
            gateway=self._sessions.gateway,
            usual=self._usual_claim(),
            check_room=lambda: ceilings.check_memory(self._substrate.capacity(), self._settings.reserve_memory),
        )
        self._runtimes = (await self._substrate.capabilities()).runtimes
        self._tasks.start(self._egress.listen(self._substrate.decisions), name="egress decisions")
        self._tasks.start(self._watch.listen(), name="sandbox changes")
        await recover(kept, self._store, self._substrate, self._sessions, self._runs, self._terminals)
        for session in self._sessions:
            if session.is_live:
                self._commands.adopt(session)
        self._approvals.keep_only({session.box.id for session in self._sessions if session.box is not None})
        if self._runtimes[self._settings.default.runtime].available:
            self._substrate.keep_warm(self._settings.default)
        self._tasks.repeat(self._tend, every_s=self._settings.reap_every_s, name="reaper")
        self._tasks.repeat(self._sessions.remember_use, every_s=_REMEMBER_USE_EVERY_S, name="last uses")

    def _usual_claim(self) -> Claim:
        """What a session is given that asks for nothing special."""
        limits = self._settings.limits
        policy = lists.default_policy(limits, self._settings.egress)
        return Claim(cpus=limits.cpus, processes=limits.processes, egress=policy)

    async def _tend(self) -> None:
        self._sessions.reap(time.time())
        self._egress.tend()

    async def _let_go(self) -> None:
        self._commands.close()
        with contextlib.suppress(K8eError):
            await self._sessions.remember_use()
        for session in self._sessions:
            if session.box is not None:
                await session.box.hang_up()
        await self._substrate.close()

    def _close(self) -> None:
        self._sessions.files.close()
        self._store.close()
        self._secrets.close()
        self._approvals.close()
        self._events.close()

    def _session_ends(self, session: Session) -> None:
        self._runs.drop(session)
        self._terminals.drop(session)
        if session.box is not None:
            self._commands.end(session.box.id)
            self._approvals.end(session.owner, session.box.id)

    def _files(self, owner: OwnerId, session_id: str) -> Files:
        return _files(self._sessions.find(owner, session_id))

    def _view(self, session: Session) -> SessionView:
        return dataclasses.replace(session.view(), gates=self._gatekeeper.of(session))

    async def _admitted(
        self, owner: OwnerId, session_id: str, command: Command, asked_by: str, exec_id: str = ""
    ) -> tuple[Session, bool]:
        """The session that a command may run in, and whether it is one that was let in before. Raises: NotFound, Denied."""
        session = self._sessions.find(owner, session_id)
        find_program = functools.partial(self._commands.find_program, session, command)

        async def is_known() -> bool:
            return bool(exec_id) and await self._commands.is_known(session, exec_id)

        return session, await self._gatekeeper.command(session, asked_by, command, find_program, is_known)

    def _check_unused(self, owner: OwnerId, tenant: str) -> None:
        using = [session.session_id for session in self._sessions.of(owner) if session.spec.tenant == tenant]
        if using:
            raise Conflict(f"workspace {tenant} is used by session {using[0]}: destroy it first")


def _files(session: Session) -> Files:
    session.last_used = time.time()
    return Files(session.live_box())
