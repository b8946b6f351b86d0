"""An MCP server for one client: whoever hosts it brings the SDK's client and the scope, and drives the transport."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

from k8e import __version__
from k8e.client import AsyncSandboxClient
from k8e.client.errors import InvalidRequest, SandboxError, ServerFailed
from k8e.mcp import confirming, files, running, sessions
from k8e.mcp.arguments import checked
from k8e.mcp.calls import Context, Handler, Result, ToolCall
from k8e.mcp.catalogue import ENTRIES, INSTRUCTIONS, tools
from k8e.mcp.gates import GATED, watched
from k8e.mcp.resources import Resources
from k8e.mcp.results import failed
from k8e.mcp.scope import ClientScope
from k8e.mcp.stream import serve

__all__ = ["NAME", "ClientScope", "build_server", "serve"]

_log = logging.getLogger(__name__)

NAME = "k8e-sandbox"

HANDLERS: Mapping[str, Handler] = {
    "sandbox_run": running.run,
    "sandbox_status": sessions.status,
    "sandbox_create_session": sessions.create,
    "sandbox_destroy_session": sessions.destroy,
    "sandbox_exec": running.exec_command,
    "sandbox_exec_stream": running.exec_stream,
    "sandbox_write_file": files.write,
    "sandbox_read_file": files.read,
    "sandbox_list_files": files.list_files,
    "sandbox_pip_install": running.pip_install,
    "sandbox_run_subagent": sessions.run_subagent,
    "sandbox_confirm_action": confirming.confirm,
}


def build_server(client: AsyncSandboxClient, scope: ClientScope) -> Server[Any]:
    """The twelve tools for one MCP client. What it makes is ended by the server's `Host`, which holds its client id."""
    resources = Resources(client, scope)

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools(await default_hosts(client)))

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> Result:
        if params.name not in HANDLERS:
            return failed(InvalidRequest(f"there is no tool {params.name!r}; the tools are {', '.join(HANDLERS)}"))
        try:
            args = checked(ENTRIES[params.name].schema, params.arguments)
        except SandboxError as error:
            return failed(error)
        call = ToolCall(client=client, scope=scope, args=args, params=params, context=ctx)
        if params.name not in GATED:
            return await answered(call)
        async with watched(call):
            return await answered(call)

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return await resources.page(params.cursor if params else None)

    async def list_templates(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return resources.templates()

    async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await resources.read(params.uri, ctx.protocol_version)

    server = Server[Any](
        NAME,
        version=__version__,
        title="k8e sandbox",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: ENTRIES[name].schema if name in ENTRIES else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    # Every call is traced where it comes into the server; the library's own spans would be a second story of the same.
    server.middleware.clear()
    return server


async def answered(call: ToolCall) -> Result:
    """The edge: whatever goes wrong is a result that a model can read."""
    try:
        return await HANDLERS[call.params.name](call)
    except SandboxError as error:
        return failed(error)
    except Exception:  # noqa: BLE001 - the edge: logged here, and its text stays with us
        _log.exception("tool failed unexpectedly", extra={"tool": call.params.name})
        return failed(ServerFailed("internal error"))


async def default_hosts(client: AsyncSandboxClient) -> tuple[str, ...] | None:
    try:
        return (await client.server_status()).default_hosts
    except SandboxError:
        return None  # the tools can be listed; calling one says what is wrong
