"""One call of a tool: whose it is, what it was given, where it works, and how it talks back while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext

from k8e.client import AsyncSandboxClient
from k8e.client.errors import InvalidRequest, NotFound, SandboxError, SandboxLost
from k8e.mcp.arguments import Arguments
from k8e.mcp.bounds import DEFAULT_CHARS, MOST_CHARS
from k8e.mcp.scope import ClientScope

__all__ = ["LOST", "Context", "Done", "Handler", "Result", "ToolCall"]

Context = ServerRequestContext[Any]
Result = types.CallToolResult | types.InputRequiredResult
T = TypeVar("T")

LOST = "The session of earlier calls had ended: this was done in a new, empty one, and files and packages of before are gone."


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What came of some work, and in which session."""

    value: T
    session_id: str
    note: str = ""
    """What to know about the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    client: AsyncSandboxClient
    scope: ClientScope
    args: Arguments
    params: types.CallToolRequestParams
    context: Context = field(repr=False)

    @property
    def session_id(self) -> str:
        """The one that is named; empty means the client's own."""
        return self.args.text("session_id")

    async def in_session(self, work: Callable[[str], Awaitable[T]], *, named: str = "") -> Done[T]:
        """Do the work in the named session, or in the client's own; once more in a new one where that is gone.

        The work must not have done anything when it says that the session is gone.
        """
        if named := named or self.session_id:
            return Done(await work(named), named)
        own = await self.scope.own()
        try:
            return Done(await work(own), own)
        except (NotFound, SandboxLost) as error:
            if isinstance(error, NotFound) and not str(error).startswith("session "):
                raise
        own = await self.scope.own(gone=own)
        try:
            return Done(await work(own), own, LOST)
        except SandboxError as error:
            error.add_note(LOST)
            raise

    async def most_chars(self) -> int:
        """How much text the answer may have. Raises: InvalidRequest for more than the operator allows."""
        wanted = self.args.whole("max_chars", DEFAULT_CHARS)
        if wanted <= DEFAULT_CHARS:
            return wanted
        allowed = (await self.client.server_status()).max_mcp_chars or MOST_CHARS
        if wanted > allowed:
            raise InvalidRequest(
                f"max_chars: this server allows {allowed} at most: ask for that or less, or have its operator raise "
                "max_mcp_chars"
            )
        return wanted

    async def progress(self, so_far: float, message: str) -> None:
        """Only where the client asked for it; waits while the client is slow to read."""
        await self.context.session.report_progress(so_far, message=message)


Handler = Callable[[ToolCall], Awaitable[Result]]
