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

from k8e import visible as characters
from k8e.client import Approval
from k8e.client.errors import Conflict, Denied, SandboxError
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import visible
from k8e.visible import LINES, only_seen, quoted

__all__ = ["approve_command", "can_ask", "can_ask_now", "question", "settle", "shown", "unheard"]

PERSON_S = 280.0
"""How long a window may stay open: a little less than a question lives."""
REASON_CHARS = 1000
PRESENCE = "elicitation"
LOCAL = frozenset({"unix", "loopback"})
"""The ways in on which the server knows which user of its machine this is."""
TRIES = 4
PAUSE_S = 0.5
"""After the first try to pass an answer on; doubled after each."""


def can_ask(call: ToolCall) -> bool:
    """Whether the client shows forms to its user; one that says nothing of modes means forms."""
    capabilities = call.context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def can_ask_now(call: ToolCall) -> bool:
    return can_ask(call) and call.context.protocol_version not in MODERN_PROTOCOL_VERSIONS


async def unheard(call: ToolCall) -> str:
    """Why nobody is asked in this client's window, where an answer there would not count."""
    if not call.scope.unheard and (me := await call.scope.identity()).via not in LOCAL:
        call.scope.unheard = (
            f"An answer in this client's window does not count: a {me.via} is no person at the machine."
        )
    return call.scope.unheard


def question(session_id: str, action: str, *, is_gate: bool = False) -> types.ElicitRequestFormParams:
    """Each line of the action stands behind a mark, so that none of them looks like one of ours."""
    where = f" in sandbox session {quoted(session_id)}" if session_id else ""
    who = f"A call{where} waits for your approval" if is_gate else f"An agent{where} asks for your approval"
    lines = "\n".join(f"| {line}" for line in characters.shown(action, keep="\n").split("\n"))
    text = f"{who}{'' if is_gate else ', in its own words'}:\n\n{lines}"
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
    reason = seen(str(content.get("reason") or "")[:REASON_CHARS])
    pause_s, failure = PAUSE_S, ""
    for _ in range(TRIES):
        try:
            await call.client.approve(approval_id, approved, reason, presence=PRESENCE)
        except Denied as error:
            # Such as where a server believes in no windows: the next question is not shown.
            call.scope.unheard = f"The answer in the window does not count: {visible(str(error))}"
            return call.scope.unheard
        except Conflict:
            return ""  # somebody else was faster, and that is the answer
        except SandboxError as error:
            failure = visible(str(error))
            await asyncio.sleep(pause_s)
            pause_s *= 2
        else:
            return ""
    return f"The answer in the window was not taken: {failure}"


def seen(text: str) -> str:
    """What of a person's words can be seen: the server takes no others, and a joined emoji must not cost the answer."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return only_seen(lines, keep=LINES)


def approve_command(approval: Approval) -> str:
    """What a person runs."""
    return f"k8e sandbox approve {shlex.quote(approval.approval_id)}"
