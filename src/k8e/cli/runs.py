"""`runs`: the background runs of a session, and how they are doing."""

from __future__ import annotations

import argparse
import os

from k8e.cli.output import print_rows, say
from k8e.cli.sharing import shared
from k8e.client.light.calls import Answer, Calls, listed

__all__ = ["list_runs"]

COLUMNS = ("run_id", "status", "exit_code", "started_at", "duration_ms", "command")
RUNNING = frozenset({"started", "running"})


def list_runs(args: argparse.Namespace, calls: Calls) -> int:
    """Oldest first. Where there is no session there are no runs; none is made for the question."""
    session_id = args.session_id or os.environ.get("K8E_SANDBOX_SESSION_ID", "") or shared(args).current()
    found = listed(calls, "ListRuns", {"session_id": session_id}, "runs") if session_id else []
    print_rows(args, "runs", [row(each) for each in found], COLUMNS, is_cut=True)
    if args.output == "table" and found:
        say(f"what one has printed:  k8e sandbox poll {found[-1].text('run_id')}")
    return 0


def row(run: Answer) -> dict[str, object]:
    status = run.text("status")
    return {
        "run_id": run.text("run_id"),
        "status": status,
        "exit_code": None if status in RUNNING else run.number("exit_code"),
        "started_at": run.decimal("started_at"),
        "duration_ms": run.number("duration_ms"),
        "command": run.text("command"),
        "session_id": run.text("session_id"),
        "truncated": run.flag("truncated"),
        "reason": run.text("reason"),
    }
