"""`allow-hosts` and `egress`: what a session may reach, and what it tried."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from k8e.cli import shapes
from k8e.cli.output import print_json
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Calls

__all__ = ["allow_hosts", "show_egress", "split", "update"]


def allow_hosts(args: argparse.Namespace, calls: Calls) -> int:
    return in_session(args, calls, lambda session_id: change(args, calls, session_id))


def change(args: argparse.Namespace, calls: Calls, session_id: str) -> int:
    """Without a change, show."""
    add, remove = split(args.add), split(args.remove)
    wholes = [text for text in (args.hosts, args.whole, "" if args.clear else None) if text is not None]
    if len(wholes) + bool(add or remove) > 1:
        raise InvalidRequest("hosts: give a whole list, or --clear, or --add and --remove")
    if wholes or add or remove:
        hosts = update(calls, session_id, hosts=split(wholes), add=add, remove=remove)
    else:
        hosts = calls.unary("GetSession", {"session_id": session_id}).texts("allowed_hosts")
    print_json({"session_id": session_id, "allowed_hosts": hosts})
    return 0


def update(
    calls: Calls, session_id: str, *, hosts: Sequence[str], add: Sequence[str] = (), remove: Sequence[str] = ()
) -> list[str]:
    """Change the list and return the new one; it is in force when this returns."""
    changes = {"hosts": list(hosts), "add": list(add), "remove": list(remove)}
    return calls.unary("UpdateAllowedHosts", {"session_id": session_id, **changes}).texts("hosts")


def show_egress(args: argparse.Namespace, calls: Calls) -> int:
    """One line each, so that it can be followed."""
    request = {"session_id": args.session_id, "limit": args.limit, "follow": args.follow}
    for decision in calls.stream("ListEgress", [request]):
        print_json(shapes.decision(decision))
    return 0


def split(texts: Iterable[str]) -> list[str]:
    """Entries that may be given one by one or separated by commas."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
