"""Approvals: an agent asks, somebody else decides. Whoever asked is never the one that decides, whatever its role."""

from __future__ import annotations

from collections.abc import Sequence

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call, whose
from k8e.doors.service.paging import page
from k8e.doors.service.presence import Presence
from k8e.engine.approvals import Approval
from k8e.engine.engine import Engine
from k8e.errors import Conflict, InvalidSpec, NotFound
from k8e.model import ApprovalPlace, ApprovalStatus, approval_place

__all__ = ["ApprovalRpcs"]

TEXT_BYTES = 4096


class ApprovalRpcs:
    def __init__(self, engine: Engine, presence: Presence) -> None:
        self._engine = engine
        self._presence = presence

    async def ConfirmAction(self, call: Call, request: pb.ConfirmActionRequest) -> pb.ConfirmActionResponse:
        """Without an id: put the question and return at once. With it: wait for the answer."""
        action = fields.clean(request.action, "action", limit=TEXT_BYTES)
        if not request.approval_id:
            session_id = fields.session_id(request.session_id)
            return confirmation(await self._engine.ask_approval(call.owner, call.caller.identity, session_id, action))
        approval_id = fields.word(request.approval_id, "approval_id")
        session = fields.word(request.session_id, "session_id", required=False)
        check_same(self._engine.get_approval(call.owner, approval_id), session=session, action=action)
        return confirmation(await self._engine.wait_approval(call.owner, approval_id))

    async def ApproveAction(self, call: Call, request: pb.ApproveActionRequest) -> pb.ApproveActionResponse:
        await self._engine.decide_approval(
            call.owner,
            self._presence.decider(call, request.presence),
            fields.word(request.approval_id, "approval_id"),
            request.approved,
            fields.clean(request.reason, "reason", limit=TEXT_BYTES),
        )
        return pb.ApproveActionResponse(ok=True)

    async def ListApprovals(self, call: Call, request: pb.ListApprovalsRequest) -> pb.ListApprovalsResponse:
        found = self._engine.list_approvals(whose(call, request, "approvals"), request.all)
        wanted = after(found, request.page_token)
        messages = await page(wanted, approval_message)
        more = token_of(wanted[len(messages) - 1]) if len(messages) < len(wanted) else b""
        return pb.ListApprovalsResponse(approvals=messages, next_page_token=more)


def token_of(view: Approval) -> bytes:
    """Where a page ended. The question itself may be decided, or gone, when the next page is asked for."""
    is_over, when, approval_id = place_of(view)
    return f"{int(is_over)} {when!r} {approval_id}".encode()


def after(found: Sequence[Approval], token: bytes) -> Sequence[Approval]:
    """What comes after the place at which a page ended. Raises: InvalidSpec.

    A question that is decided meanwhile moves back in the list: it may come twice, and none is left out.
    """
    if not token:
        return found
    try:
        is_over, when, approval_id = token.decode().split(" ")
        place = bool(int(is_over)), float(when), approval_id
    except ValueError as error:
        raise InvalidSpec("is not one that this server has given", field="page_token") from error
    return [each for each in found if place_of(each) > place]


def place_of(view: Approval) -> ApprovalPlace:
    is_pending = view.status is ApprovalStatus.PENDING
    return approval_place(is_pending=is_pending, asked_at=view.asked_at, approval_id=view.approval_id)


def check_same(asked: Approval, *, session: str, action: str) -> None:
    """One answer must not stand for another question. Raises: NotFound, Conflict."""
    if session and session != asked.session_id:
        raise NotFound("approval", asked.approval_id)
    if action and action != asked.action:
        raise Conflict(f"approval {asked.approval_id} is for another action: ask for this one without approval_id")


def confirmation(view: Approval) -> pb.ConfirmActionResponse:
    return pb.ConfirmActionResponse(
        approval_id=view.approval_id,
        approved=view.status is ApprovalStatus.APPROVED,
        status=view.status,
        reason=view.reason,
        decided_by=view.decided_by,
        expires_at=int(view.expires_at),
    )


def approval_message(view: Approval) -> pb.Approval:
    return pb.Approval(
        approval_id=view.approval_id,
        session_id=view.session_id,
        action=view.action,
        status=view.status,
        asked_by=view.asked_by,
        decided_by=view.decided_by,
        reason=view.reason,
        asked_at=int(view.asked_at),
        expires_at=int(view.expires_at),
        decided_at=int(view.decided_at),
        owner=view.owner,
        is_gate=view.is_gate,
    )
