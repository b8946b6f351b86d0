"""Answers of the server in the shape in which commands print them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from k8e.client.light.calls import Answer, exact

if TYPE_CHECKING:
    import argparse

__all__ = ["decision", "denials", "everybodys", "file", "owner", "run", "server", "session"]

LIMITS = {
    "cpus": float,
    "memory_bytes": int,
    "processes": int,
    "disk_bytes": int,
    "output_bytes": int,
    "run_output_bytes": int,
    "command_timeout_s": float,
    "ttl_s": float,
    "idle_timeout_s": float,
    "connections": int,
    "network_bytes_per_s": int,
}


def everybodys(args: argparse.Namespace) -> dict[str, object]:
    """What a list is asked for with `--all-owners`; else nothing, because an older server refuses words it does not know."""
    return {"all_owners": True} if args.all_owners else {}


def owner(args: argparse.Namespace, answer: Answer) -> dict[str, object]:
    """Whose a row is, where that is the question."""
    return {"owner": answer.text("owner")} if args.all_owners else {}


def session(answer: Answer) -> dict[str, object]:
    shown: dict[str, object] = {
        "session_id": answer.text("session_id"),
        "pod_ip": "",
        "phase": answer.text("phase"),
        "runtime_class": answer.text("runtime_class"),
        "tenant_id": answer.text("tenant_id"),
        "expires_at": answer.number("expires_at"),
        "idle_at": answer.number("idle_at"),
        "created_at": answer.number("created_at"),
        "env_keys": answer.texts("env_keys"),
        "background_runs": answer.number("background_runs"),
        "allowed_hosts": answer.texts("allowed_hosts"),
        "image": answer.text("image"),
        "warm": answer.flag("warm"),
        "parent_session_id": answer.text("parent_session_id"),
        "child_session_ids": answer.texts("child_session_ids"),
        "limits": limits(answer.one("limits")),
        "secret_env_vars": answer.texts("secret_env_vars"),
        "brokered_secrets": [brokered(each) for each in answer.each("brokered_secrets")],
        "network": answer.text("network"),
        "owner": answer.text("owner"),
        "gates": gates(answer.one("gates")),
        "labels": answer.pairs("labels"),
    }
    return shown | ({"usage": usage(answer.one("usage"))} if answer.has("usage") else {})


def limits(answer: Answer) -> dict[str, object]:
    return {
        name: (answer.number(name) if kind is int else answer.decimal(name)) if answer.has(name) else None
        for name, kind in LIMITS.items()
    }


def gates(answer: Answer) -> list[str]:
    """As `create --gate` takes them."""
    flags = [name for name in ("egress", "workspace", "secrets") if answer.flag(name)]
    paths = [f"write={path}" for path in answer.texts("write_paths")]
    return [*flags, *paths, *(f"command={pattern}" for pattern in answer.texts("commands"))]


def usage(answer: Answer) -> dict[str, object]:
    return {
        "cpu_s": answer.decimal("cpu_s"),
        "memory_bytes": answer.number("memory_bytes"),
        "processes": answer.number("processes"),
    }


def brokered(answer: Answer) -> dict[str, object]:
    return {name: answer.text(name) for name in ("env_var", "secret_name", "host", "key", "header")}


def run(answer: Answer) -> dict[str, object]:
    """What `run` and `poll` have in common, in their order."""
    return {
        "stdout": answer.text("stdout"),
        "stderr": answer.text("stderr"),
        "exit_code": answer.number("exit_code"),
    }


def denials(answer: Answer) -> dict[str, object]:
    """For whoever may allow it; nothing when nothing was denied."""
    shown = [
        {"host": each.text("host"), "port": each.number("port"), "reason": each.text("reason")}
        for each in answer.each("egress_denied")
    ]
    return {"egress_denied": shown} if shown else {}


def decision(answer: Answer) -> dict[str, object]:
    return {
        "time": answer.decimal("time"),
        "session_id": answer.text("session_id"),
        "verdict": answer.text("verdict"),
        "protocol": answer.text("protocol"),
        "name": answer.text("name"),
        "address": answer.text("address"),
        "port": answer.number("port"),
        "rule": answer.text("rule"),
        "reason": answer.text("reason"),
        "bytes_sent": answer.number("bytes_sent"),
        "bytes_received": answer.number("bytes_received"),
        "count": answer.number("count"),
    }


def file(answer: Answer) -> dict[str, object]:
    return {
        "path": exact(answer, "path"),
        "modified": answer.number("modified"),
        "type": answer.text("type"),
        "size": answer.number("size"),
    }


def server(answer: Answer) -> dict[str, object]:
    return {
        "pid": answer.number("pid"),
        "data_dir": answer.text("data_dir"),
        "doors": answer.pairs("doors"),
        "runtimes": {
            each.text("name"): {"available": each.flag("available"), "detail": each.text("detail")}
            for each in answer.each("runtimes")
        },
        "pool": json.loads(answer.text("pool_json") or "[]"),
        "sessions": answer.number("sessions"),
        "version": answer.text("version"),
        "egress": json.loads(answer.text("egress_json") or "{}"),
        "ca_fingerprint": answer.text("ca_fingerprint"),
    }
