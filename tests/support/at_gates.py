"""Calls that have come to a gate, and the person who decides: straight into a service, whatever engine it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import Service
from k8e.errors import Conflict, Denied, SandboxLost
from k8e.identity.callers import Role
from tests.support.calls import StraightCall, as_key
from tests.support.cells import OWNER

__all__ = ["AGENT", "PERSON", "at_gate", "decide", "outcome", "pending", "waiting"]

AGENT = as_key("agent", owner=OWNER)
PERSON = as_key("phone", owner=OWNER, role=Role.APPROVER)


async def waiting(service: Service, *, but: tuple[str, ...] = ()) -> list[pb.Approval]:
    """The questions that wait, once there is one besides these."""
    async with asyncio.timeout(60):
        while True:
            answer = await service.answer("ListApprovals", PERSON, pb.ListApprovalsRequest())
            if found := [each for each in answer.approvals if each.approval_id not in but]:
                return found
            await asyncio.sleep(0.01)


async def pending(service: Service) -> list[pb.Approval]:
    return list((await service.answer("ListApprovals", PERSON, pb.ListApprovalsRequest())).approvals)


async def decide(
    service: Service, asked: pb.Approval, *, approved: bool = True, call: StraightCall = PERSON, presence: str = ""
) -> None:
    request = pb.ApproveActionRequest(
        approval_id=asked.approval_id, approved=approved, reason="seen", presence=presence
    )
    await service.answer("ApproveAction", call, request)


@asynccontextmanager
async def at_gate(work: Awaitable[Any], service: Service) -> AsyncIterator[tuple[asyncio.Task[Any], pb.Approval]]:
    """A call that has come to a gate, with its question; it must have ended by the end of the block."""
    known = tuple(each.approval_id for each in await pending(service))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(outcome(work), name="call at a gate")
        asked = await waiting(service, but=known)
        assert len(asked) == 1
        assert not task.done()
        yield task, asked[0]


async def outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except (Denied, Conflict, SandboxLost) as error:
        return error
