"""The person behind a client: shown a question in their own window, and what they said.

Only clients that show forms can ask. The newest revision lets no server ask in the middle of a call: there a question goes
back in place of the answer, where a tool can do that.
"""

from __future__ import annotations

import asyncio
import shlex

import mcp_types as types
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from k8e.client import Approval
from k8e.client.errors import Conflict, Denied
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import visible

__all__ = ["approve_command", "can_ask", "can_ask_now", "question", "settle", "shown"]

PERSON_S = 280.0
"""How long a window may stay open: a little less than a question lives."""
REASON_CHARS = 1000
PRESENCE = "elicitation"


def can_ask(call: ToolCall) -> bool:
    """Whether the client shows forms to its user; one that says nothing of modes means forms."""
    capabilities = call.context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def can_ask_now(call: ToolCall) -> bool:
    return can_ask(call) and call.context.protocol_version not in MODERN_PROTOCOL_VERSIONS


def question(session_id: str, action: str) -> types.ElicitRequestFormParams:
    text = f"An agent asks for your approval (sandbox session {visible(session_id)}):\n\n{visible(action)}"
    approve = {"type": "boolean", "title": "Approve", "description": "Let the agent do this", "default": False}
    reason = {"type": "string", "title": "Reason", "description": "Why, for the agent and the audit log"}
    schema = {"type": "object", "properties": {"approve": approve, "reason": reason}, "required": ["approve"]}
    return types.ElicitRequestFormParams(message=text, requested_schema=schema)


async def shown(call: ToolCall, asked: types.ElicitRequestFormParams) -> types.ElicitResult | None:
    """What the person answered; None where nobody was asked or nobody answered."""
    try:
        async with asyncio.timeout(PERSON_S):
            return await call.context.session.elicit_form(
                asked.message, asked.requested_schema, related_request_id=call.context.request_id
            )
    except (TimeoutError, MCPError, NoBackChannelError, ValidationError):
        return None


async def settle(call: ToolCall, approval_id: str, said: types.ElicitResult | None) -> str:
    """Write down what the person said, and why it does not count where it does not.

    Everything but a clear yes is a no; only a window that was closed decides nothing.
    """
    if said is None or said.action == "cancel":
        return ""
    content = said.content or {}
    approved = said.action == "accept" and content.get("approve") is True
    reason = str(content.get("reason") or "")[:REASON_CHARS]
    try:
        await call.client.approve(approval_id, approved, reason, presence=PRESENCE)
    except Denied as error:
        # Such as for a key: whoever holds it may be anywhere, and what its window showed nobody knows.
        return f"The answer in the window does not count: {visible(str(error))}"
    except Conflict:
        pass  # somebody else was faster, and that is the answer
    return ""


def approve_command(approval: Approval) -> str:
    """What a person runs."""
    return f"k8e sandbox approve {shlex.quote(approval.approval_id)}"
