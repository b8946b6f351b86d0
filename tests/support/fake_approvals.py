"""Approvals as the doors' fake engine keeps them: in memory, judged by the engine's own rules."""

from __future__ import annotations

import asyncio
import itertools
import time

from k8e.engine.approvals import MAX_TEXT_BYTES, Approval, check_text, in_order
from k8e.engine.questions import MAX_QUESTION_BYTES
from k8e.errors import InvalidSpec, NotFound
from k8e.model import ApprovalId, OwnerId, SandboxId, SessionId

__all__ = ["FakeApprovals"]

VALID_S = 300.0


class FakeApprovals:
    def __init__(self) -> None:
        self._approvals: dict[str, Approval] = {}
        self._asked = itertools.count(1)
        self._decided = asyncio.Condition()
        super().__init__()

    def asked_in(
        self, owner: OwnerId, session_id: SessionId, asked_by: str, action: str, *, is_gate: bool = False
    ) -> Approval:
        """A new question of a session that is there."""
        most_bytes = MAX_QUESTION_BYTES if is_gate else MAX_TEXT_BYTES
        if not check_text(action, field="action", most_bytes=most_bytes).strip():
            raise InvalidSpec("say what is to be approved", field="action")
        now = time.time()
        asked = Approval(
            approval_id=ApprovalId(f"approval-{session_id}-{next(self._asked)}"),
            owner=owner,
            session_id=session_id,
            sandbox=SandboxId(session_id),
            action=action,
            asked_by=asked_by,
            asked_at=now,
            expires_at=now + VALID_S,
            is_gate=is_gate,
        )
        self._approvals[asked.approval_id] = asked
        return asked

    def get_approval(self, owner: OwnerId, approval_id: str) -> Approval:
        found = self._approvals.get(approval_id)
        if found is None or found.owner != owner:
            raise NotFound("approval", approval_id)
        return found.at(time.time())

    async def wait_approval(self, owner: OwnerId, approval_id: str, timeout_s: float | None = None) -> Approval:
        self.get_approval(owner, approval_id)
        async with self._decided:
            await self._decided.wait_for(lambda: not self.get_approval(owner, approval_id).is_pending)
        return self.get_approval(owner, approval_id)

    async def decide_approval(
        self, owner: OwnerId, decided_by: str, approval_id: str, approved: bool, reason: str = ""
    ) -> Approval:
        current = self.get_approval(owner, approval_id)
        decided = current.decided(decided_by, approved=approved, reason=reason, now=time.time())
        self._approvals[approval_id] = decided
        async with self._decided:
            self._decided.notify_all()
        return decided

    def list_approvals(self, owner: OwnerId | None, all: bool = False) -> list[Approval]:
        mine = in_order(each for each in self._approvals.values() if owner in {None, each.owner})
        return [each for each in mine if all or each.is_pending]
