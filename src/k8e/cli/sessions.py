"""`create`, `get`, `sessions`, `destroy`, `subagent`, `status` and `workspaces`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from k8e.cli.output import SERVER, print_json
from k8e.cli.sharing import forget, shared
from k8e.client.errors import InvalidRequest, NotFound, SandboxError, Unsupported

if TYPE_CHECKING:
    from k8e.cli.groups import Subparsers
    from k8e.client import AsyncSandboxClient, Limits, SessionInfo

__all__ = ["add", "unavailable"]

CREATE_EXAMPLES = """examples:
  SID=$(k8e sandbox create | jq -r .session_id)
  k8e sandbox create --runtime container --memory-mib 2048 --cpus 2 --env TOKEN=x
  k8e sandbox create --tenant my-project          # its /workspace survives the session
"""


def add(commands: Subparsers) -> None:
    create = commands.add_parser(
        "create",
        help="make a session of your own",
        epilog=CREATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    create.add_argument("--runtime", default="", help="gvisor (default), container, kata or firecracker")
    create.add_argument("--allowed-hosts", default="", metavar="A,B", help="names that the session may reach")
    create.add_argument("--tenant", default="", help="a name whose /workspace outlives the session")
    create.add_argument("--session-id", default="", help="an id of your own choice")
    create.add_argument("--env", action="append", default=[], metavar="K=V", help="a variable for every command")
    create.add_argument("--image", default="", help="host (default), a root directory, or an OCI layout")
    create.add_argument("--cpus", type=float)
    create.add_argument("--memory-mib", type=int)
    create.add_argument("--disk-mib", type=int)
    create.add_argument("--processes", type=int)
    create.add_argument("--ttl", type=float, metavar="S", help="seconds to live (default 24 h, 0 for ever)")
    create.add_argument("--idle", type=float, metavar="S", help="seconds unused before it ends (default 1 h)")
    create.set_defaults(handler=create_session)

    get = commands.add_parser("get", help="show one session")
    get.add_argument("session_id")
    get.set_defaults(handler=get_session)

    listing = commands.add_parser("sessions", help="list your sessions")
    listing.add_argument("--phase", default="Active", help="Active (default), another phase, or all")
    listing.set_defaults(handler=list_sessions)

    destroy = commands.add_parser("destroy", help="end a session and everything in it")
    destroy.add_argument("session_id")
    destroy.set_defaults(handler=destroy_session, has_ok=True)

    subagent = commands.add_parser("subagent", help="a child session that shares the parent's /workspace")
    subagent.add_argument("parent_session_id")
    subagent.set_defaults(handler=run_subagent)

    status = commands.add_parser("status", help="is the service up, and which session is shared; never starts it")
    status.add_argument("--tenant", default="")
    status.set_defaults(handler=show_status, starts_server=False)

    workspaces = commands.add_parser("workspaces", help="the workspaces that outlive their sessions")
    actions = workspaces.add_subparsers(metavar="list|delete", required=True)
    actions.add_parser("list", help="list them").set_defaults(handler=list_workspaces)
    delete = actions.add_parser("delete", help="delete one with all its files")
    delete.add_argument("tenant")
    delete.set_defaults(handler=delete_workspace, has_ok=True)


async def create_session(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    session_id = await client.create_session(
        args.runtime,
        [host for host in args.allowed_hosts.split(",") if host],
        args.tenant,
        session_id=args.session_id,
        env=dict(pair(text) for text in args.env),
        image=args.image,
        limits=limits(args),
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
    )


def shown(session: SessionInfo) -> dict[str, object]:
    values = dataclasses.asdict(session)
    return {"session_id": values.pop("session_id"), "pod_ip": "", "secret_env_vars": [], **values}


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
