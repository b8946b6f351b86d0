"""Calls about approvals: one identity asks, another one decides."""

from __future__ import annotations

from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import DeadlineExceeded
from k8e.client.people import Approval
from k8e.client.transport import QUICK_S, Transport

__all__ = ["ApprovalCalls"]


class ApprovalCalls(Transport):
    async def confirm(self, session_id: str, action: str, timeout: float = 30) -> Approval:
        """Ask somebody to approve an action, and wait for the answer at most `timeout` seconds.

        The answer says `approved`, and who decided and why. Without one in time it is still `pending`: ask for it again
        with `confirmed`. A `timeout` of 0 does not wait.
        """
        request = pb.ConfirmActionRequest(session_id=session_id, action=action)
        asked = approval(await self._call(self._stub.ConfirmAction, request, timeout_s=QUICK_S), session_id, action)
        if timeout <= 0:
            return asked
        return await self._decided(asked, timeout)

    async def confirmed(
        self, approval_id: str, timeout: float = 30, *, session_id: str = "", action: str = ""
    ) -> Approval:
        """How an approval that was asked for stands, waiting for a decision at most `timeout` seconds.

        With `session_id` or `action` only if it was asked for these: an answer to one question is none to another.
        """
        asked = Approval(approval_id=approval_id, status="pending", session_id=session_id, action=action)
        return await self._decided(asked, timeout)

    async def approve(self, approval_id: str, approved: bool = True, reason: str = "", *, presence: str = "") -> None:
        """Decide. Raises: Denied for the identity that asked, Conflict when it was decided otherwise.

        `presence` says how a person was asked by this program, which runs as a user of the server's machine:
        `elicitation` in an agent's window, `terminal` at a terminal. Only then may it be the user that asked.
        """
        request = pb.ApproveActionRequest(approval_id=approval_id, approved=approved, reason=reason, presence=presence)
        await self._call(self._stub.ApproveAction, request, timeout_s=QUICK_S)

    async def approvals(self, *, all: bool = False, all_owners: bool = False) -> list[Approval]:
        """What waits for a decision; with `all` also what was decided or has expired; of every owner for administrators."""
        request = pb.ListApprovalsRequest(all=all, all_owners=all_owners)
        pages = self._pages(self._stub.ListApprovals, request)
        return [
            Approval(
                approval_id=each.approval_id,
                status=each.status,
                session_id=each.session_id,
                action=each.action,
                asked_by=each.asked_by,
                decided_by=each.decided_by,
                reason=each.reason,
                asked_at=each.asked_at,
                expires_at=each.expires_at,
                decided_at=each.decided_at,
                owner=each.owner,
                is_gate=each.is_gate,
            )
            async for answer in pages
            for each in answer.approvals
        ]

    async def _decided(self, asked: Approval, timeout: float) -> Approval:
        request = pb.ConfirmActionRequest(
            session_id=asked.session_id, action=asked.action, approval_id=asked.approval_id
        )
        try:
            answer = await self._call(self._stub.ConfirmAction, request, timeout_s=timeout)
        except DeadlineExceeded:
            return asked
        return approval(answer, asked.session_id, asked.action)


def approval(message: pb.ConfirmActionResponse, session_id: str, action: str) -> Approval:
    return Approval(
        approval_id=message.approval_id,
        status=message.status or ("approved" if message.approved else "pending"),
        session_id=session_id,
        action=action,
        decided_by=message.decided_by,
        reason=message.reason,
        expires_at=message.expires_at,
    )
