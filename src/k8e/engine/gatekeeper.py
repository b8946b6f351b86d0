"""Calls that wait for a person: the question is put, the call waits, and then goes on or is refused.

A question belongs to the one call that asked it. Its approval lets that call go on, as it was asked, and nothing else;
when the call goes away, or the server does, the question ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from k8e.engine import gates as asking
from k8e.engine import lists, questions
from k8e.engine.approvals import Approval, Approvals
from k8e.engine.events import EventLog
from k8e.engine.files import UNGUARDED, Files, Guard
from k8e.engine.observing import Observer
from k8e.engine.questions import FoundProgram, Wider
from k8e.engine.session import Session, Use
from k8e.engine.settings import EngineSettings
from k8e.engine.workspaces import Workspaces, WorkspaceView
from k8e.errors import Conflict, Denied, InvalidSpec
from k8e.model import (
    MIB,
    ApprovalStatus,
    Command,
    EgressMode,
    Gates,
    OwnerId,
    SandboxId,
    SessionId,
    SessionSpec,
)

__all__ = ["AtGate", "GateStep", "Gatekeeper", "unwitnessed"]

VERBS: Final = {"mkdir": "make the directory", "remove": "remove", "move": "move"}
TAKES_ALONG: Final = frozenset({"remove", "move"})
NO_SESSION: Final = SessionId("")
NO_SANDBOX: Final = SandboxId("")
"""Questions about what is not there yet, or no more."""
LONGEST: Final = MIB
"""No command can be longer, so none is searched."""
MOST_OF_ALL: Final = 256
"""Paths or patterns that can add up for one session."""


class GateStep(StrEnum):
    """How far a call has come that waits for a person."""

    ASKED = "asked"
    PASSED = "passed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


AtGate = Callable[[GateStep, Approval], None]
"""Told of each step, when it happens, for a record that outlives us."""


FindProgram = Callable[[], Awaitable[FoundProgram]]
"""Which program a command would run, asked of its sandbox."""


def unwitnessed(step: GateStep, approval: Approval) -> None:
    pass


class Gatekeeper:
    """Whoever asks is named by its identity; without one it is the owner itself, and never nobody."""

    def __init__(
        self,
        settings: EngineSettings,
        approvals: Approvals,
        workspaces: Workspaces,
        events: EventLog,
        observer: Observer,
        at_gate: AtGate,
    ) -> None:
        self._settings = settings
        self._server = asking.normal(settings.gates)
        self._approvals = approvals
        self._workspaces = workspaces
        self._events = events
        self._observer = observer
        self._at_gate = at_gate

    def of(self, session: Session) -> Gates:
        """All that holds for a session: the server's, its own, its parent's, and those of its tenant."""
        top = session.parent or session
        own = (session.spec.gates, top.spec.gates, self._workspaces.gates(session.owner, top.spec.tenant))
        return asking.union(self._server, *own)

    def specified(self, owner: OwnerId, spec: SessionSpec) -> Gates:
        """All that a new session has. Raises: InvalidSpec, HostUnsupported."""
        gates = asking.union(self._inherited(owner, spec), asking.normal(spec.gates))
        if max(len(gates.write_paths), len(gates.commands)) > MOST_OF_ALL:
            raise InvalidSpec(f"with those of the tenant and the server more than {MOST_OF_ALL} entries", field="gates")
        return gates

    async def ask(self, session: Session, asked_by: str, action: str) -> None:
        """Wait for the decision. Raises: Denied, Exhausted, SandboxLost when the session ends meanwhile."""
        sandbox, waiting = session.live_box().id, Use(session)
        try:
            await self._pass(session.owner, asked_by, action, session_id=session.session_id, sandbox=sandbox)
        except Denied:
            session.live_box()
            raise
        finally:
            waiting()

    # Sessions

    async def creation(self, owner: OwnerId, asked_by: str, spec: SessionSpec) -> None:
        """A new session. The list that it brings is its creator's to choose, but for what was gated before it came."""
        hosts = Wider()
        if self._inherited(owner, spec).egress and spec.network is not EgressMode.NONE:
            hosts = asking.widened(lists.resolved(SessionSpec(network=EgressMode.LIST), self._settings.egress), spec)
        secrets = spec.secret_refs if spec.gates.secrets else ()
        if question := questions.creation_question(tenant=spec.tenant, hosts=hosts, secrets=secrets):
            await self._pass(owner, asked_by, question, session_id=SessionId(spec.session_id))

    async def child(self, parent: Session, asked_by: str, spec: SessionSpec) -> None:
        """A sub-agent reaches what its parent does, but its programs are others: they see secrets anew."""
        secrets = spec.secret_refs if self.of(parent).secrets else ()
        if question := questions.creation_question(tenant=spec.tenant, hosts=Wider(), secrets=secrets):
            # It has no name yet. The question is its parent's, is found there, and ends with it.
            await self.ask(parent, asked_by, question)

    async def workspace(self, owner: OwnerId, asked_by: str, view: WorkspaceView) -> None:
        """The end of a workspace. Raises: Conflict when it is another one by the time of the answer."""
        if not asking.union(self._server, view.gates).workspace:
            return
        await self._pass(owner, asked_by, questions.workspace_question(view.tenant))
        if self._workspaces.find(owner, view.tenant).workspace != view.workspace:
            raise Conflict(f"workspace {view.tenant} is another one now than was approved")

    # Its list

    async def hosts(self, session: Session, asked_by: str, changed: SessionSpec) -> Wider:
        """What of a wider list is approved."""
        wider = asking.widened(session.spec, changed) if self.of(session).egress else Wider()
        if wider:
            await self.ask(session, asked_by, questions.hosts_question(wider))
        return wider

    def check_hosts(self, session: Session, changed: SessionSpec, approved: Wider) -> None:
        """The list may have changed while the question waited. Raises: Conflict."""
        if self.of(session).egress and not asking.widened(session.spec, changed).is_within(approved):
            raise Conflict("the session's list has changed while this waited for approval: ask again")

    # Commands and files

    async def command(
        self,
        session: Session,
        asked_by: str,
        command: Command,
        find_program: FindProgram,
        is_known: Callable[[], Awaitable[bool]],
    ) -> bool:
        """Whether the command is known and so has been through here, or else, on return, it may run.

        Raises: Denied, InvalidSpec, Conflict when it would run another program than was approved.
        """
        gates = self.of(session)
        if not gates.commands:
            return False
        length = asking.command_length(command)
        if length > LONGEST:
            raise InvalidSpec("it is larger than 1 MiB: write it to a file first", field="command")
        match = await asyncio.to_thread(asking.command_match, gates, command)
        if match is None:
            return False
        if await is_known():
            return True
        env, user = {**session.spec.env, **command.env}, command.user or session.spec.user
        whole = dataclasses.replace(command, env=env, user=user)
        program = await find_program()
        secrets = [each.env_var for each in session.spec.secret_refs]
        ask = functools.partial(questions.command_question, gates=match.patterns, spans=match.spans, secrets=secrets)
        await self.ask(session, asked_by, await asyncio.to_thread(ask, whole, program))
        if await find_program() != program:
            raise Conflict("the command would now run another program than was approved: ask again")
        return False

    async def held(self, session: Session, op: str, **paths: str) -> tuple[Guard, bool]:
        """What the sandbox's agent is to look at when it makes a change, and whether somebody is asked before."""
        gates = self.of(session)
        if not gates.write_paths:
            return UNGUARDED, False
        places = await Files(session.live_box()).gated(op, gates.write_paths, **paths)
        # A directory that is there already is not made; of everything else the letters alone are enough to ask.
        by_name = op != "mkdir" and any(asking.is_held(gates, path, above=op in TAKES_ALONG) for path in paths.values())
        return Guard(gates=gates.write_paths, approved=places), bool(places) or by_name

    async def change(self, session: Session, asked_by: str, op: str, *, also: str = "", **paths: str) -> Guard:
        """A directory made, a file moved or removed."""
        guard, is_gated = await self.held(session, op, **paths)
        if is_gated:
            question = questions.file_question(VERBS[op], list(paths.values()), guard.approved)
            await self.ask(session, asked_by, f"{question}{also}")
        return guard

    # The wait itself

    def _inherited(self, owner: OwnerId, spec: SessionSpec) -> Gates:
        return asking.union(self._server, self._workspaces.gates(owner, spec.tenant))

    async def _pass(
        self,
        owner: OwnerId,
        asked_by: str,
        action: str,
        *,
        session_id: SessionId = NO_SESSION,
        sandbox: SandboxId = NO_SANDBOX,
    ) -> None:
        asked = await self._approvals.ask(
            owner, session_id, sandbox, asked_by=asked_by or owner, action=action, is_gate=True
        )
        self._tell(GateStep.ASKED, asked)
        self._observer.approval(asked.status)
        try:
            decided = await self._approvals.wait(owner, asked.approval_id)
        except BaseException:
            self._tell(GateStep.WITHDRAWN, self._approvals.withdraw(asked))
            raise
        if decided.status is not ApprovalStatus.APPROVED:
            self._tell(GateStep.REFUSED, decided)
            raise _refusal(decided)
        self._tell(GateStep.PASSED, decided)

    def _tell(self, step: GateStep, approval: Approval) -> None:
        self._events.add(
            approval.owner,
            approval.session_id,
            f"gate.{step}",
            approval_id=approval.approval_id,
            action=approval.action,
            asked_by=approval.asked_by,
            decided_by=approval.decided_by,
            reason=approval.reason,
        )
        self._at_gate(step, approval)


def _refusal(decided: Approval) -> Denied:
    in_short = decided.action.partition("\n")[0]
    asked = f"{in_short}; the question was {decided.approval_id}"
    if decided.status is ApprovalStatus.REJECTED:
        why = f" ({decided.reason})" if decided.reason else ""
        text = f"refused by {decided.decided_by}{why}: {asked}"
    else:
        text = f"nobody approved it in time: {asked}; call again while somebody looks at `k8e sandbox approvals list`"
    return Denied(text, approval_id=decided.approval_id)
