"""`confirm`, `approve` and `approvals`: an agent asks, somebody else answers."""

from __future__ import annotations

import argparse
import shlex

from k8e.cli import shapes
from k8e.cli.output import BAD_INPUT, print_json, print_rows, say
from k8e.cli.patience import in_short
from k8e.client.errors import Conflict, DeadlineExceeded, InvalidRequest, Unsupported
from k8e.client.light.calls import Answer, Calls, listed

__all__ = ["approve", "confirm", "list_approvals"]

COLUMNS = ("approval_id", "status", "action", "asked_by", "decided_by", "expires_at")


def confirm(args: argparse.Namespace, calls: Calls) -> int:
    if args.timeout <= 0:
        raise InvalidRequest("timeout: must be more than 0 seconds")
    asked = calls.unary("ConfirmAction", {"session_id": args.session_id, "action": args.action})
    approval_id = asked.text("approval_id")
    say(f"approval needed: {args.action}")
    say(f"a person approves with:       k8e sandbox approve {shlex.quote(approval_id)}")
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
    request: dict[str, object] = {
        "approval_id": args.approval_id,
        "approved": not args.reject,
        "reason": args.reason,
    }
    asked = own_question(args.approval_id, calls)
    if asked is not None:
        from k8e.cli.person import agrees, terminal

        with terminal() as fd:
            if fd is not None and not agrees(fd, asked, "Reject this?" if args.reject else "Allow this?"):
                print_json({"ok": False, "approval_id": args.approval_id, "detail": "nothing was decided"})
                return BAD_INPUT
            if fd is not None:
                request["presence"] = "terminal"
    calls.unary("ApproveAction", request)
    print_json({"ok": True, "approval_id": args.approval_id, "approved": not args.reject})
    return 0


def own_question(approval_id: str, calls: Calls) -> Answer | None:
    """The question, where this very user asked it: then it takes the person and not the program to decide it.

    Only through the unix socket can the server see a terminal; elsewhere it says what to do instead.

    Raises: Conflict when it is decided or expired.
    """
    try:
        me = calls.unary("WhoAmI", {})
    except Unsupported:
        return None
    if me.text("via") != "unix" or me.text("owner") != me.text("identity"):
        return None
    known = listed(calls, "ListApprovals", {"all": True}, "approvals")
    mine = (each for each in known if each.text("asked_by") == me.text("identity"))
    found = next((each for each in mine if each.text("approval_id") == approval_id), None)
    if found is not None and found.text("status") != "pending":
        by = f" by {found.text('decided_by')}" if found.text("decided_by") else ""
        raise Conflict(f"approval {approval_id} is already {found.text('status')}{by}")
    return found


def list_approvals(args: argparse.Namespace, calls: Calls) -> int:
    found = listed(calls, "ListApprovals", {"all": args.all, **shapes.everybodys(args)}, "approvals")
    texts = ("approval_id", "session_id", "action", "status", "asked_by", "decided_by", "reason", "owner")
    times = ("asked_at", "expires_at", "decided_at")
    rows: list[dict[str, object]] = [
        {
            **{name: each.text(name) for name in texts},
            **{name: each.number(name) for name in times},
            "is_gate": each.flag("is_gate"),
        }
        for each in found
    ]
    if args.output == "table":
        rows = [{**row, "action": in_short(str(row["action"]))} for row in rows]
    print_rows(args, "approvals", rows, (*COLUMNS, "owner") if args.all_owners else COLUMNS)
    return 0
