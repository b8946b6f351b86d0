"""`allow-hosts` and `egress`: what a session may reach, and what it tried."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from k8e.cli import shapes
from k8e.cli.output import print_json, print_rows
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest, NotFound, Unsupported
from k8e.client.light.calls import Calls

__all__ = ["allow_hosts", "show_egress", "split", "update"]


SESSION_PREFIX = "sess-"
"""Of every id that a server chose."""
NO_ID = frozenset(",:/*!")
"""Characters that lists have and ids have not. A dot is in hosts and in ids that users chose: there the server tells."""


def allow_hosts(args: argparse.Namespace, calls: Calls) -> int:
    """Without a change, show."""
    if args.session is not None:
        name_session(args, calls)
    return in_session(args, calls, lambda session_id: change(args, calls, session_id))


def name_session(args: argparse.Namespace, calls: Calls) -> None:
    """Tell whether the first word is a session or, standing alone, the new list."""
    if not is_session(args.session, calls):
        if args.hosts is not None:
            raise InvalidRequest(
                f"{args.session!r} is not a session (see: k8e sandbox sessions); "
                f"separate hosts by commas: {args.session},{args.hosts}"
            )
        args.hosts = args.session
    elif args.session_id not in {"", args.session}:
        raise InvalidRequest(f"two sessions are named, {args.session!r} and {args.session_id!r}: name one")
    else:
        args.session_id = args.session


def is_session(word: str, calls: Calls) -> bool:
    """Whether a word names a session. Raises: InvalidRequest when only a session could be meant, and there is none."""
    if looks_like_session(word):
        return True
    if not NO_ID.isdisjoint(word):
        return False
    if word and exists(word, calls):
        return True
    if "." in word:
        return False
    raise InvalidRequest(
        f"there is no session {word!r} (see: k8e sandbox sessions); if a host is meant: --hosts {word or 'HOST'}"
    )


def exists(session_id: str, calls: Calls) -> bool:
    try:
        calls.unary("GetSession", {"session_id": session_id})
    except NotFound:
        return False
    return True


def looks_like_session(entry: str) -> bool:
    """Also as people would put it into a list, with a port or to be denied. No host is called so."""
    name = entry.removeprefix("!").partition(":")[0]
    return name.startswith(SESSION_PREFIX) and "." not in name


def change(args: argparse.Namespace, calls: Calls, session_id: str) -> int:
    add, remove = split(args.add), split(args.remove)
    wholes = [text for text in (args.hosts, args.whole, "" if args.clear else None) if text is not None]
    if len(wholes) + args.defaults + bool(add or remove) > 1:
        raise InvalidRequest("hosts: give a whole list, or --clear, or --defaults, or --add and --remove")
    if args.defaults:
        hosts = update(calls, session_id, hosts=default_hosts(calls))
    elif wholes or add or remove:
        hosts = update(calls, session_id, hosts=split(wholes), add=add, remove=remove)
    else:
        hosts = calls.unary("GetSession", {"session_id": session_id}).texts("allowed_hosts")
    if args.output == "table":
        print_rows(args, "allowed_hosts", [{"host": host} for host in hosts], ("host",))
    else:
        print_json({"session_id": session_id, "allowed_hosts": hosts})
    return 0


def default_hosts(calls: Calls) -> list[str]:
    """What a session may reach that brings no list of its own."""
    hosts = calls.unary("ServerStatus", {}).texts("default_hosts")
    if not hosts:
        # Sent as a list it would allow nothing, which nobody asked for.
        raise Unsupported("this server names no default list; give a list, or --clear to allow nothing")
    return hosts


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
    """Entries that may be given one by one or separated by commas. Raises: InvalidRequest for a session's id."""
    entries = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    for entry in filter(looks_like_session, entries):
        raise InvalidRequest(
            f"{entry!r} is the id of a session, not a host; name the session first: "
            f"k8e sandbox allow-hosts {SESSION_PREFIX}… --add HOST"
        )
    return entries
