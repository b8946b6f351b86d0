"""A person is asked before something that cannot be undone. No tool decides: this one asks, and tells the answer.

Where the client can show a question to its user it is asked to, and the answer counts as that person's; whether the
caller's identity may be so answered for is the server's to say. Otherwise the model gets the command that a person has to
run.
"""

from __future__ import annotations

import dataclasses

import mcp_types as types

from k8e.client import Approval
from k8e.client.errors import InvalidRequest, NotFound
from k8e.mcp import person
from k8e.mcp.calls import Result, ToolCall
from k8e.mcp.results import Fields, told, visible

__all__ = ["confirm"]

WAIT_S = 60
BEAT_S = 5.0
"""How often a client that waits hears that we still do."""
QUESTION = "approval"


async def confirm(call: ToolCall) -> Result:
    approval_id, action = call.args.text("approval_id"), call.args.text("action")
    if approval_id:
        return answer(await waited(call, approval_id))
    if not action:
        raise InvalidRequest("action: is required, or approval_id to wait for the answer to an earlier question")
    if call.params.request_state:
        return await taken(call, call.params.request_state)
    asked = await put(call, action)
    call.scope.claim(asked.approval_id)
    if asked.status != "pending" or not person.can_ask(call):
        return answer(asked)
    if unheard := await person.unheard(call):
        return answer(asked, note=unheard)
    question = person.question(asked.session_id, action)
    if person.can_ask_now(call):
        return await decided(call, asked, await person.shown(call, question))
    call.scope.ask(asked.approval_id)
    return types.InputRequiredResult(
        input_requests={QUESTION: types.ElicitRequest(params=question)}, request_state=asked.approval_id
    )


async def put(call: ToolCall, action: str) -> Approval:
    async def ask(session_id: str) -> Approval:
        return await call.client.confirm(session_id, action, timeout=0)

    return (await call.in_session(ask)).value


async def taken(call: ToolCall, approval_id: str) -> types.CallToolResult:
    """The second half of a call whose question went back with the first one."""
    if not call.scope.answered(approval_id):
        raise InvalidRequest("requestState: is not that of a question which waits for its answer")
    found = (call.params.input_responses or {}).get(QUESTION)
    asked = await question_of(call, approval_id)
    session_id = call.session_id or await call.scope.own()
    if (asked.session_id, asked.action) != (session_id, call.args.text("action")):
        raise InvalidRequest("requestState: is that of another question than session_id and action are")
    return await decided(call, asked, found if isinstance(found, types.ElicitResult) else None)


async def decided(call: ToolCall, asked: Approval, said: types.ElicitResult | None) -> types.CallToolResult:
    if asked.status != "pending" or said is None or said.action == "cancel":
        return answer(asked)
    if note := await person.settle(call, asked.approval_id, said):
        return answer(asked, note=note)
    return answer(await stands(call, asked, timeout=BEAT_S))


async def waited(call: ToolCall, approval_id: str) -> Approval:
    """How the question stands once it is decided or the time is over; it must be the one that the call names, if it does."""
    asked = await question_of(call, approval_id)
    session_id, action = call.session_id or asked.session_id, call.args.text("action") or asked.action
    asked = dataclasses.replace(asked, session_id=session_id, action=action)
    left, gone = call.args.number("timeout", WAIT_S), 0.0
    while True:
        beat = min(BEAT_S, left - gone)
        found = await stands(call, asked, timeout=max(beat, 0.1))
        gone += beat
        if found.status != "pending" or gone >= left:
            return found
        await call.progress(gone, "waiting for a person to decide")


async def question_of(call: ToolCall, approval_id: str) -> Approval:
    for each in await call.client.approvals(all=True):
        if each.approval_id == approval_id:
            return each
    raise NotFound(f"approval {approval_id} not found")


async def stands(call: ToolCall, asked: Approval, *, timeout: float) -> Approval:
    """The server refuses where that question has another session or another action."""
    return await call.client.confirmed(asked.approval_id, timeout, session_id=asked.session_id, action=asked.action)


def answer(approval: Approval, *, note: str = "") -> types.CallToolResult:
    fields: Fields = {
        "approval_id": approval.approval_id,
        "approved": approval.approved,
        "status": approval.status,
    }
    for name, text in (("action", approval.action), ("decided_by", approval.decided_by), ("reason", approval.reason)):
        if text:
            fields[name] = visible(text)
    if approval.status == "pending":
        command = person.approve_command(approval)
        fields |= {
            "approve_with": command,
            "reject_with": f"{command} --reject",
            "next": "Not approved yet: do not do it. Show the user the action and approve_with, which a person has to run; "
            "then call this tool again with approval_id.",
        }
    elif not approval.approved:
        fields["next"] = "Not approved: do not do it, and do not ask again for the same."
    if note:
        fields["note"] = note
    return told(fields)
