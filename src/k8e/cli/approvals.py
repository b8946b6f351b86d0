"""`confirm`, `approve` and `approvals`: an agent asks, somebody else answers."""

from __future__ import annotations

import argparse
import shlex

from k8e.cli.output import BAD_INPUT, print_json, print_rows, say
from k8e.client.errors import DeadlineExceeded, InvalidRequest
from k8e.client.light.calls import Answer, Calls

__all__ = ["approve", "confirm", "list_approvals"]

COLUMNS = ("approval_id", "status", "action", "asked_by", "decided_by", "expires_at")


def confirm(args: argparse.Namespace, calls: Calls) -> int:
    if not 0 < args.timeout < float("inf"):
        raise InvalidRequest("timeout: must be more than 0 seconds")
    asked = calls.unary("ConfirmAction", {"session_id": args.session_id, "action": args.action})
    approval_id = asked.text("approval_id")
    say(f"approval needed: {shown(args.action)}")
    say(f"somebody else approves with:  k8e sandbox approve {shlex.quote(approval_id)}")
    say(f"or rejects with:              k8e sandbox approve {shlex.quote(approval_id)} --reject")
    if args.no_wait:
        print_json({"approved": False, "approval_id": approval_id, "status": "pending"})
        return 0
    request = {"session_id": args.session_id, "action": args.action, "approval_id": approval_id}
    try:
        return told(calls.unary("ConfirmAction", request, timeout_s=args.timeout))
    except DeadlineExceeded:
        say(f"nobody answered within {args.timeout:g} s; until it expires it is on the list of `k8e sandbox approvals`")
        print_json({"approved": False, "approval_id": approval_id, "status": "pending"})
        return BAD_INPUT


def shown(text: str) -> str:
    """An action must not pretend to be another line of ours."""
    return "".join(each if each.isprintable() else "?" for each in text)


def told(answer: Answer) -> int:
    approved = answer.flag("approved")
    print_json(
        {
            "approved": approved,
            "approval_id": answer.text("approval_id"),
            "status": answer.text("status"),
            "decided_by": answer.text("decided_by"),
            "reason": answer.text("reason"),
        }
    )
    return 0 if approved else BAD_INPUT


def approve(args: argparse.Namespace, calls: Calls) -> int:
    request = {"approval_id": args.approval_id, "approved": not args.reject, "reason": args.reason}
    calls.unary("ApproveAction", request)
    print_json({"ok": True, "approval_id": args.approval_id, "approved": not args.reject})
    return 0


def list_approvals(args: argparse.Namespace, calls: Calls) -> int:
    found = calls.unary("ListApprovals", {"all": args.all}).each("approvals")
    texts = ("approval_id", "session_id", "action", "status", "asked_by", "decided_by", "reason", "owner")
    times = ("asked_at", "expires_at", "decided_at")
    rows: list[dict[str, object]] = [
        {**{name: each.text(name) for name in texts}, **{name: each.number(name) for name in times}} for each in found
    ]
    print_rows(args, "approvals", rows, COLUMNS)
    return 0
