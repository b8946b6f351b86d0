"""Gates as the doors' fake engine keeps them: the engine's own decisions, waited for in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from k8e.engine import gates as asking
from k8e.engine import questions
from k8e.engine.approvals import Approval
from k8e.errors import Denied
from k8e.model import ApprovalStatus, Command, Gates, OwnerId, SecretRef, SessionId, SessionSpec
from tests.support.fake_approvals import FakeApprovals

__all__ = ["FakeGates"]


class FakeGates(FakeApprovals):
    """`gates` are the server's; those of tenants are remembered."""

    def __init__(self) -> None:
        self.gates = Gates()
        self._of_tenants: dict[tuple[OwnerId, str], Gates] = {}
        super().__init__()

    def gates_of(self, owner: OwnerId, spec: SessionSpec) -> Gates:
        return asking.union(self.gates, spec.gates, self._of_tenants.get((owner, spec.tenant), Gates()))

    async def admitted(
        self,
        owner: OwnerId,
        asked_by: str,
        spec: SessionSpec,
        *,
        default: SessionSpec | None = None,
        parent: SessionId | None = None,
    ) -> SessionSpec:
        """The spec of a new session with all its gates, once it may be made; `default` for one that is nobody's child."""
        inherited = self.gates_of(owner, dataclasses.replace(spec, gates=Gates()))
        spec = dataclasses.replace(spec, gates=asking.union(inherited, asking.normal(spec.gates)))
        hosts = asking.widened(default, spec) if inherited.egress and default is not None else questions.Wider()
        secrets: Sequence[SecretRef] = spec.secret_refs if spec.gates.secrets else ()
        if action := questions.creation_question(tenant=spec.tenant, hosts=hosts, secrets=secrets):
            await self.wait_at_gate(owner, parent or SessionId(spec.session_id), asked_by, action)
        if spec.tenant:
            self._of_tenants[owner, spec.tenant] = spec.gates
        return spec

    async def gate_command(
        self, owner: OwnerId, session_id: SessionId, spec: SessionSpec, asked_by: str, command: Command
    ) -> None:
        if match := asking.command_match(self.gates_of(owner, spec), command):
            program = questions.FoundProgram("/bin/sh", "/bin/sh")
            question = questions.command_question(command, program, gates=match.patterns, spans=match.spans)
            await self.wait_at_gate(owner, session_id, asked_by, question)

    async def wait_at_gate(self, owner: OwnerId, session_id: SessionId, asked_by: str, action: str) -> None:
        asked = self.asked_in(owner, session_id, asked_by or owner, action, is_gate=True)
        try:
            decided = await self.wait_approval(owner, asked.approval_id)
        except BaseException:
            self._approvals[asked.approval_id] = asked.expired(asked.asked_at)
            raise
        if decided.status is not ApprovalStatus.APPROVED:
            raise refusal(decided)


def refusal(decided: Approval) -> Denied:
    return Denied(
        f"refused by {decided.decided_by or 'nobody'} ({decided.reason}): {decided.action}",
        approval_id=decided.approval_id,
    )
