"""`create`, `get`, `sessions`, `label`, `destroy`, `subagent`, `status`, `workspaces` and `whoami`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from k8e.cli import shapes
from k8e.cli.network import split
from k8e.cli.output import SERVER, print_json, print_rows
from k8e.cli.secrets import brokered, reference
from k8e.cli.sharing import forget, shared, tenant
from k8e.client.errors import InvalidRequest, NotFound, SandboxError, Unsupported
from k8e.client.light.calls import CREATE_S, Calls, Request, listed

__all__ = [
    "create_session",
    "delete_workspace",
    "destroy_session",
    "get_session",
    "label_session",
    "list_sessions",
    "list_workspaces",
    "run_subagent",
    "show_status",
    "who_am_i",
]

MIB = 1024 * 1024
GATES = ("egress", "workspace", "secrets")
SESSION_COLUMNS = ("session_id", "phase", "runtime_class", "tenant_id", "background_runs", "expires_at", "owner")


def create_session(args: argparse.Namespace, calls: Calls) -> int:
    from k8e.cli.entries import materialize, wanted

    entries = wanted(args)
    if args.image:
        from k8e.cli.images import pull

        pull(calls, args.image, args.runtime)
    made = calls.unary("CreateSession", request(args), timeout_s=CREATE_S).text("session_id")
    try:
        materialize(calls, made, entries)
    except BaseException:
        # Nobody has been told its id yet.
        calls.unary("DestroySession", {"session_id": made})
        raise
    print_json({"session_id": made, "pod_ip": "", "entries_materialized": len(entries)})
    return 0


def request(args: argparse.Namespace) -> Request:
    return {
        "session_id": args.session_id,
        "tenant_id": tenant(args.tenant),
        "allowed_hosts": split([args.allowed_hosts]),
        "runtime_class": args.runtime,
        "env": dict(pair(text, "env") for text in args.env),
        "image": args.image,
        "network": args.network,
        "limits": limits(args),
        "secret_refs": [reference(text) for text in args.secret],
        "brokered_secrets": [brokered(text) for text in args.broker],
        # Where none is asked for, a server that knows none is asked for nothing that it does not know.
        **({"gates": gates(args.gate)} if args.gate else {}),
        **({"labels": dict(pair(text, "label") for text in args.label)} if args.label else {}),
    }


def gates(entries: Sequence[str]) -> Request:
    """`egress`, `workspace`, `secrets`, `write=PATH` and `command=PATTERN`, each as often as it is meant."""
    asked: dict[str, object] = {}
    lists: dict[str, list[str]] = {"write": [], "command": []}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if name in lists and value:
            lists[name].append(value)
        elif name in GATES and not equals:
            asked[name] = True
        else:
            raise InvalidRequest(f"gate: {entry!r} is none of {', '.join(GATES)}, write=PATH, command=PATTERN")
    return asked | {"write_paths": lists["write"], "commands": lists["command"]}


def pair(text: str, field: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{field}: {text!r} is not K=V")
    return key, value


def limits(args: argparse.Namespace) -> Request:
    asked = {
        "cpus": args.cpus,
        "memory_bytes": args.memory_mib and args.memory_mib * MIB,
        "disk_bytes": args.disk_mib and args.disk_mib * MIB,
        "processes": args.processes,
        "ttl_s": args.ttl,
        "idle_timeout_s": args.idle,
        "connections": args.connections,
        "network_bytes_per_s": args.network_bytes,
    }
    return {name: value for name, value in asked.items() if value is not None}


def get_session(args: argparse.Namespace, calls: Calls) -> int:
    print_json(shapes.session(calls.unary("GetSession", {"session_id": args.session_id})))
    return 0


def list_sessions(args: argparse.Namespace, calls: Calls) -> int:
    wanted = {"labels": args.label} if args.label else {}
    found = listed(calls, "ListSessions", {"phase": args.phase, **wanted, **shapes.everybodys(args)}, "sessions")
    columns = (*SESSION_COLUMNS, "labels") if args.show_labels else SESSION_COLUMNS
    print_rows(args, "sessions", [shapes.session(each) for each in found], columns)
    return 0


def label_session(args: argparse.Namespace, calls: Calls) -> int:
    """Without a change, show."""
    given: dict[str, str] = {}
    remove: list[str] = []
    for text in args.changes:
        if text.endswith("-") and "=" not in text:  # no key ends so, but a value may
            remove.append(text[:-1])
            continue
        key, value = pair(text, "label")
        if key in given:
            raise InvalidRequest(f"label: {key} is set twice")
        given[key] = value
    named = {"session_id": args.session_id}
    if args.changes:
        session = calls.unary("UpdateLabels", {**named, "set": given, "remove": remove})
    else:
        session = calls.unary("GetSession", named)
    print_json({"session_id": session.text("session_id"), "labels": session.pairs("labels")})
    return 0


def destroy_session(args: argparse.Namespace, calls: Calls) -> int:
    try:
        calls.unary("DestroySession", {"session_id": args.session_id})
    except NotFound:
        forget(args.session_id)
        raise
    forget(args.session_id)
    print_json({"ok": True})
    return 0


def run_subagent(args: argparse.Namespace, calls: Calls) -> int:
    asked = {"parent_session_id": args.parent_session_id}
    print_json({"session_id": calls.unary("RunSubAgent", asked, timeout_s=CREATE_S).text("session_id")})
    return 0


def show_status(args: argparse.Namespace, calls: Calls) -> int:
    state = shared(args)
    told: dict[str, object] = {"available": True, "session_id": state.current(), "tenant_id": state.tenant}
    try:
        calls.unary("ServerStatus", {})
    except Unsupported:
        pass  # an older server: it answered, so it is up
    except SandboxError as error:
        print_json({**told, "available": False, "error": str(error)})
        return SERVER
    print_json(told)
    return 0


def list_workspaces(args: argparse.Namespace, calls: Calls) -> int:
    found = calls.unary("ListWorkspaces", shapes.everybodys(args)).each("workspaces")
    rows: list[dict[str, object]] = [
        {
            "tenant_id": each.text("tenant_id"),
            "disk_bytes": each.number("disk_bytes"),
            "last_used": each.number("last_used"),
            **shapes.owner(args, each),
        }
        for each in found
    ]
    print_rows(args, "workspaces", rows)
    return 0


def delete_workspace(args: argparse.Namespace, calls: Calls) -> int:
    calls.unary("DeleteWorkspace", {"tenant_id": args.tenant})
    print_json({"ok": True, "tenant_id": args.tenant})
    return 0


def who_am_i(args: argparse.Namespace, calls: Calls) -> int:
    answer = calls.unary("WhoAmI", {})
    print_json({name: answer.text(name) for name in ("owner", "identity", "role", "via")})
    return 0
