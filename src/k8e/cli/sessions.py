"""`create`, `get`, `sessions`, `destroy`, `subagent`, `status` and `workspaces`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from k8e.cli.network import split
from k8e.cli.output import SERVER, print_json
from k8e.cli.secrets import brokered, reference
from k8e.cli.sharing import forget, shared
from k8e.client.errors import InvalidRequest, NotFound, SandboxError, Unsupported

if TYPE_CHECKING:
    from k8e.client import AsyncSandboxClient, Limits, SessionInfo

__all__ = [
    "create_session",
    "delete_workspace",
    "destroy_session",
    "get_session",
    "list_sessions",
    "list_workspaces",
    "run_subagent",
    "show_status",
    "unavailable",
]


async def create_session(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    session_id = await client.create_session(
        args.runtime,
        split([args.allowed_hosts]),
        args.tenant,
        session_id=args.session_id,
        env=dict(pair(text) for text in args.env),
        image=args.image,
        limits=limits(args),
        secret_refs=[reference(text) for text in args.secret],
        brokered_secrets=[brokered(text) for text in args.broker],
        network=args.network,
    )
    print_json({"session_id": session_id, "pod_ip": "", "entries_materialized": 0})
    return 0


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"env: {text!r} is not K=V")
    return key, value


def limits(args: argparse.Namespace) -> Limits:
    from k8e.client.values import Limits

    mib = 1024 * 1024
    return Limits(
        cpus=args.cpus,
        memory_bytes=args.memory_mib and args.memory_mib * mib,
        disk_bytes=args.disk_mib and args.disk_mib * mib,
        processes=args.processes,
        ttl_s=args.ttl,
        idle_timeout_s=args.idle,
        connections=args.connections,
        network_bytes_per_s=args.network_bytes,
    )


def shown(session: SessionInfo) -> dict[str, object]:
    values = dataclasses.asdict(session)
    return {"session_id": values.pop("session_id"), "pod_ip": "", **values}


async def get_session(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    print_json(shown(await client.get(args.session_id)))
    return 0


async def list_sessions(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    print_json({"sessions": [shown(session) for session in await client.sessions(args.phase)]})
    return 0


async def destroy_session(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    try:
        await client.destroy_session(args.session_id)
    except NotFound:
        forget(args.session_id)
        raise
    forget(args.session_id)
    print_json({"ok": True})
    return 0


async def run_subagent(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    print_json({"session_id": await client.subagent(args.parent_session_id)})
    return 0


async def show_status(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    state = shared(args.tenant)
    try:
        await client.server_status()
    except Unsupported:
        pass  # an older server: it answered, so it is up
    except SandboxError as error:
        return unavailable(args, error)
    print_json({"available": True, "session_id": state.current(), "tenant_id": state.tenant})
    return 0


def unavailable(args: argparse.Namespace, error: SandboxError) -> int:
    state = shared(args.tenant)
    told = {"available": False, "session_id": state.current(), "tenant_id": state.tenant, "error": str(error)}
    print_json(told)
    return SERVER


async def list_workspaces(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    print_json({"workspaces": [dataclasses.asdict(each) for each in await client.workspaces()]})
    return 0


async def delete_workspace(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    await client.delete_workspace(args.tenant)
    print_json({"ok": True, "tenant_id": args.tenant})
    return 0
