"""A person is asked before something that cannot be undone. No tool decides: this one asks, and tells the answer.

Where the client can show a question to its user it is asked to, and the answer counts as that person's; whether the
caller's identity may be so answered for is the server's to say. Otherwise the model gets the command that somebody else
has to run.
"""

from __future__ import annotations

import asyncio
import shlex

import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from k8e.client import Approval
from k8e.client.errors import Conflict, Denied, InvalidRequest
from k8e.mcp.calls import Result, ToolCall
from k8e.mcp.results import Fields, told, visible

__all__ = ["confirm"]

WAIT_S = 60
PERSON_S = 280.0
"""How long a window may stay open: a little less than the question lives."""
BEAT_S = 5.0
"""How often a client that waits hears that we still do."""
QUESTION = "approval"
ELICITATION = "elicitation"


async def confirm(call: ToolCall) -> Result:
    approval_id = call.args.text("approval_id")
    if approval_id:
        return answer(await waited(call, approval_id))
    if not call.args.text("action"):
        raise InvalidRequest("action: is required, or approval_id to wait for the answer to an earlier question")
    if call.params.request_state:
        return await taken(call, call.params.request_state)
    asked = await call.client.confirm(call.session_id, call.args.text("action"), timeout=0)
    if asked.status != "pending" or not can_ask(call):
        return answer(asked)
    if call.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        call.scope.ask(asked.approval_id)
        return types.InputRequiredResult(
            input_requests={QUESTION: types.ElicitRequest(params=question(call))}, request_state=asked.approval_id
        )
    return await decided(call, asked, await shown(call))


def can_ask(call: ToolCall) -> bool:
    """Whether the client shows forms to its user; one that says nothing of modes means forms."""
    capabilities = call.context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def question(call: ToolCall) -> types.ElicitRequestFormParams:
    text = f"An agent asks for your approval (sandbox session {call.session_id}):\n\n{call.args.text('action')}"
    approve = {"type": "boolean", "title": "Approve", "description": "Let the agent do this", "default": False}
    reason = {"type": "string", "title": "Reason", "description": "Why, for the agent and the audit log"}
    schema = {"type": "object", "properties": {"approve": approve, "reason": reason}, "required": ["approve"]}
    return types.ElicitRequestFormParams(message=text, requested_schema=schema)


async def shown(call: ToolCall) -> types.ElicitResult | None:
    """What the person answered; None where nobody was asked or nobody answered."""
    asked = question(call)
    try:
        async with asyncio.timeout(PERSON_S):
            return await call.context.session.elicit_form(
                asked.message, asked.requested_schema, related_request_id=call.context.request_id
            )
    except (TimeoutError, MCPError, NoBackChannelError, ValidationError):
        return None


async def taken(call: ToolCall, approval_id: str) -> types.CallToolResult:
    """The second half of a call whose question went back with the first one."""
    if not call.scope.answered(approval_id):
        raise InvalidRequest("requestState: is not that of a question which waits for its answer")
    found = (call.params.input_responses or {}).get(QUESTION)
    waiting = (each for each in await call.client.approvals() if each.approval_id == approval_id)
    asked = next(waiting, None) or await call.client.confirmed(approval_id, timeout=BEAT_S)
    return await decided(call, asked, found if isinstance(found, types.ElicitResult) else None)


async def decided(call: ToolCall, asked: Approval, said: types.ElicitResult | None) -> types.CallToolResult:
    """Write down what the person said. One that closed the window said nothing, and the question stays."""
    if said is None or said.action == "cancel" or asked.status != "pending":
        return answer(asked)
    content = said.content or {}
    approved = said.action == "accept" and content.get("approve") is True
    reason = str(content.get("reason") or "")[:1000]
    try:
        await call.client.approve(asked.approval_id, approved, reason, presence=ELICITATION)
    except Denied as error:
        # Such as for a key: whoever holds it may be anywhere, and what its window showed nobody knows.
        return answer(asked, note=f"The answer in the window does not count: {visible(str(error))}")
    except Conflict:
        pass  # somebody else was faster, and that is the answer
    return answer(await call.client.confirmed(asked.approval_id, timeout=BEAT_S))


async def waited(call: ToolCall, approval_id: str) -> Approval:
    left = call.args.number("timeout", WAIT_S)
    gone = 0.0
    while True:
        beat = min(BEAT_S, left - gone)
        found = await call.client.confirmed(approval_id, timeout=max(beat, 0.1))
        gone += beat
        if found.status != "pending" or gone >= left:
            return found
        await call.progress(gone, "waiting for a person to decide")


def answer(approval: Approval, *, note: str = "") -> types.CallToolResult:
    fields: Fields = {
        "approval_id": approval.approval_id,
        "approved": approval.approved,
        "status": approval.status,
    }
    for name, text in (("decided_by", approval.decided_by), ("reason", approval.reason)):
        if text:
            fields[name] = visible(text)
    if approval.status == "pending":
        name = shlex.quote(approval.approval_id)
        fields |= {
            "approve_with": f"k8e sandbox approve {name}",
            "reject_with": f"k8e sandbox approve {name} --reject",
            "next": "Not approved yet: do not do it. Show the user the action and approve_with, which a person has to run; "
            "then call this tool again with approval_id.",
        }
    elif not approval.approved:
        fields["next"] = "Not approved: do not do it, and do not ask again for the same."
    if note:
        fields["note"] = note
    return told(fields)
