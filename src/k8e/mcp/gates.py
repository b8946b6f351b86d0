"""Calls that wait at a gate of their session: the person is asked in their own window, or the client is told for what
they wait.

The server asks and holds the call; here somebody only looks beside it, and only at calls that take their time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator

import anyio

from k8e.client import Approval
from k8e.client.errors import SandboxError
from k8e.mcp import person
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import visible

__all__ = ["GATED", "watched"]

_log = logging.getLogger(__name__)

GATED = frozenset({
    "sandbox_run", "sandbox_create_session", "sandbox_exec", "sandbox_exec_stream", "sandbox_write_file",
    "sandbox_pip_install", "sandbox_run_subagent",
})  # fmt: skip
FIRST_LOOK_S = 0.5
"""Nearly every call is over by then."""
LONGEST_PAUSE_S = 8.0
SLACK_S = 5
"""What two clocks may differ by: questions that are older than the call hold up something else."""


@contextlib.asynccontextmanager
async def watched(call: ToolCall) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(watch, call, time.time() - SLACK_S, name="gate")
        yield
        group.cancel_scope.cancel()


async def watch(call: ToolCall, since: float) -> None:
    """Whatever goes wrong here, the call beside it goes on, and so does the looking."""
    pause_s = FIRST_LOOK_S
    while True:
        await anyio.sleep(pause_s)
        try:
            await look(call, since)
        except SandboxError:
            pass  # whoever may not look is not helped, and what failed now may go well the next time
        except Exception:  # noqa: BLE001 - logged here; the call itself has done nothing wrong
            _log.exception("a question that holds up a call is not shown", extra={"tool": call.params.name})
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


async def look(call: ToolCall, since: float) -> None:
    waiting = [each for each in await call.client.approvals() if is_about(call, each) and each.asked_at >= since]
    me = (await call.scope.identity()).identity if waiting else ""
    for each in waiting:
        if each.asked_by == me and call.scope.claim(each.approval_id):
            await ask(call, each)


def is_about(call: ToolCall, approval: Approval) -> bool:
    """Whether the session of a question is that of the call; a tenant's that is to be made has no name yet."""
    if named := {call.session_id, call.args.text("parent_session_id")} - {""}:
        return approval.session_id in named
    return call.scope.uses(approval.session_id) or (bool(call.args.text("tenant_id")) and not approval.session_id)


async def ask(call: ToolCall, approval: Approval) -> None:
    told = f"waits for a person's approval: {visible(approval.action)}"
    unheard = await person.unheard(call) if person.can_ask_now(call) else ""
    lines = (told, f"A person allows it with: {person.approve_command(approval)}", unheard)
    await call.progress(0, "\n".join(line for line in lines if line))
    if unheard or not person.can_ask_now(call):
        return
    try:
        said = await person.shown(call, person.question(approval.session_id, approval.action, is_gate=True))
    except BaseException:
        call.scope.release(approval.approval_id)  # it may hold up another call than this one, which ends
        raise
    if note := await person.settle(call, approval.approval_id, said):
        await call.progress(0, note)
