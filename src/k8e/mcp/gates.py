"""Calls that wait at a gate of their session: the person is asked in their own window, or the client is told for what
they wait.

The server asks and holds the call; here somebody only looks beside it, and only at calls that take their time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import anyio

from k8e.client import Approval
from k8e.client.errors import SandboxError
from k8e.mcp import person
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import visible

__all__ = ["GATED", "watched"]

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
    pause_s = FIRST_LOOK_S
    with contextlib.suppress(SandboxError):  # whoever may not look is not helped; the call itself says what is wrong
        while True:
            await anyio.sleep(pause_s)
            for each in await call.client.approvals():
                if is_about(call, each) and each.asked_at >= since and call.scope.claim(each.approval_id):
                    await ask(call, each)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def is_about(call: ToolCall, approval: Approval) -> bool:
    named = {call.session_id, call.args.text("parent_session_id")} - {""}
    return approval.session_id in named or call.scope.holds(approval.session_id)


async def ask(call: ToolCall, approval: Approval) -> None:
    command = person.approve_command(approval)
    await call.progress(
        0, f"waits for a person's approval: {visible(approval.action)}\nA person allows it with: {command}"
    )
    if person.can_ask_now(call):
        said = await person.shown(call, person.question(approval.session_id, approval.action))
        await person.settle(call, approval.approval_id, said)
