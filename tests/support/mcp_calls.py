"""What tests of MCP do with a client, whichever transport it came by; and the person at its window."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData, TextContent

__all__ = ["Person", "called", "fields", "text", "until"]

_PATIENCE_S = 60.0


class Person:
    """Answers what it is asked, always the same way."""

    def __init__(self, action: Any = "accept", **content: Any) -> None:
        self._answer = ElicitResult(action=action, content=content or None)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        self.asked.append(params.message)
        return self._answer


async def called(client: Client, name: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool(name, arguments)
    assert isinstance(result, CallToolResult)
    return result


async def fields(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The structure of an answer that is no failure."""
    result = await called(client, name, **arguments)
    assert not result.is_error, result
    return dict(result.structured_content or {})


def text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def until(found: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not await found():
            await asyncio.sleep(0.05)
