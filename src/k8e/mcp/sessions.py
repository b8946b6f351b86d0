"""Tools about sessions: what there is, make one, end one, and one that shares another's files."""

from __future__ import annotations

from collections.abc import Sequence

import mcp_types as types

from k8e.client import Limits
from k8e.client.errors import InvalidRequest, Unreachable
from k8e.mcp.arguments import Arguments
from k8e.mcp.bounds import fitting, in_json
from k8e.mcp.calls import ToolCall
from k8e.mcp.results import Fields, told, with_notes
from k8e.mcp.scope import MARKED

__all__ = ["create", "destroy", "run_subagent", "status"]

MIB = 1024 * 1024
HOST_CHARS = 10_000
"""Of the hosts in one answer."""


async def status(call: ToolCall) -> types.CallToolResult:
    """Without making anything: the own session is named only where there is one."""
    try:
        server = await call.client.server_status()
        own = await call.scope.present()
    except Unreachable as error:
        return told({"available": False, "session_id": "", "reason": str(error)})
    return told(
        {
            "available": True,
            "session_id": own.session_id if own else "",
            "network": own.network if own else "list",
            **hosts_of(own.allowed_hosts if own else server.default_hosts),
            "runtimes": [name for name, each in server.runtimes.items() if each.available],
            "version": server.version,
        }
    )


def hosts_of(hosts: Sequence[str]) -> Fields:
    listed = fitting(hosts, HOST_CHARS, in_json)
    more = f"{len(hosts) - len(listed)} more hosts are not shown." if len(listed) < len(hosts) else ""
    return with_notes({"allowed_hosts": listed}, more)


async def create(call: ToolCall) -> types.CallToolResult:
    args = call.args
    tenant_id = args.text("tenant_id")
    if MARKED.fullmatch(args.text("session_id")):
        raise InvalidRequest("session_id: a name like this is one of sessions that end with their client; give another")
    session_id = await call.client.create_session(
        args.text("runtime_class"),
        args.texts("allowed_hosts"),
        tenant_id,
        # Named by the caller, or a tenant's: it stays. Otherwise it goes with the client that made it.
        session_id=args.text("session_id") or ("" if tenant_id else call.scope.new_id()),
        env=args.by_name("env"),
        network=args.text("network"),
        limits=limits_of(args),
    )
    made = await call.client.get(session_id)
    return told(
        {
            "session_id": session_id,
            "pod_ip": "",
            "runtime_class": made.runtime_class,
            "network": made.network,
            **hosts_of(made.allowed_hosts),
            "memory_mib": (made.limits.memory_bytes or 0) // MIB,
            "cpus": made.limits.cpus or 0,
            "disk_mib": (made.limits.disk_bytes or 0) // MIB,
        }
    )


def limits_of(args: Arguments) -> Limits | None:
    """What the session is asked to have; None where all is left to the server."""
    if not any(map(args.has, ("memory_mib", "cpus", "disk_mib"))):
        return None
    return Limits(
        memory_bytes=args.whole("memory_mib") * MIB if args.has("memory_mib") else None,
        cpus=args.number("cpus", 0) if args.has("cpus") else None,
        disk_bytes=args.whole("disk_mib") * MIB if args.has("disk_mib") else None,
    )


async def destroy(call: ToolCall) -> types.CallToolResult:
    await call.client.destroy_session(call.session_id)
    return told({"ok": True})


async def run_subagent(call: ToolCall) -> types.CallToolResult:
    """The kind of agent and its path are words of earlier clients; a child always shares all of /workspace."""
    done = await call.in_session(call.client.subagent, named=call.args.text("parent_session_id"))
    return told(with_notes({"session_id": done.value}, done.note))
