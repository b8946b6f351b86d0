"""One call of a tool: whose it is, what it was given, and how it talks back while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext

from k8e.client import AsyncSandboxClient
from k8e.mcp.arguments import Arguments
from k8e.mcp.scope import ClientScope

__all__ = ["Context", "Handler", "Result", "ToolCall"]

Context = ServerRequestContext[Any]
Result = types.CallToolResult | types.InputRequiredResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    client: AsyncSandboxClient
    scope: ClientScope
    args: Arguments
    params: types.CallToolRequestParams
    context: Context = field(repr=False)

    @property
    def session_id(self) -> str:
        """Of tools that need one."""
        return self.args.text("session_id")

    async def progress(self, so_far: float, message: str) -> None:
        """Only where the client asked for it; waits while the client is slow to read."""
        await self.context.session.report_progress(so_far, message=message)


Handler = Callable[[ToolCall], Awaitable[Result]]
