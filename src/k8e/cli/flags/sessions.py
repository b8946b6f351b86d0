"""Flags of commands about sessions and their network."""

from __future__ import annotations

from k8e.cli.flags.programs import entries
from k8e.cli.grammar import Parser, add_all_owners, add_output

__all__ = [
    "fill_allow_hosts",
    "fill_create",
    "fill_destroy",
    "fill_egress",
    "fill_get",
    "fill_label",
    "fill_pull",
    "fill_sessions",
    "fill_status",
    "fill_subagent",
    "fill_workspaces",
]


def fill_create(create: Parser) -> None:
    create.add_argument("--runtime", default="", help="gvisor (default), container, kata or firecracker")
    create.add_argument(
        "--allowed-hosts", default="", metavar="A,B", help="hosts that it may reach, instead of the default"
    )
    create.add_argument("--network", default="", help="list (default), none, or open where the server allows it")
    create.add_argument("--connections", type=int, help="connections at once (default 256)")
    create.add_argument(
        "--network-bytes", type=int, metavar="N", help="bytes a second, both ways together (default any)"
    )
    create.add_argument("--tenant", default="", help="a name whose /workspace outlives the session")
    create.add_argument("--session-id", default="", help="an id of your own choice")
    create.add_argument("--env", action="append", default=[], metavar="K=V", help="a variable for every command")
    create.add_argument(
        "--label", action="append", default=[], metavar="K=V", help="a label, by which `sessions --label` finds it"
    )
    create.add_argument("--secret", action="append", default=[], metavar="ENV=NAME:KEY", help="a secret as a variable")
    create.add_argument(
        "--broker",
        action="append",
        default=[],
        metavar="ENV=NAME:KEY@HOST[/HEADER]",
        help="a secret that stays outside: its placeholder is swapped on the way to that host",
    )
    create.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="WHAT",
        help="ask a person before: egress, write=PATH, workspace, secrets, command=PATTERN (advisory)",
    )
    create.add_argument(
        "--image", default="", help="host (default), a name such as python:3.12-slim, or one of the server's own"
    )
    create.add_argument("--cpus", type=float, help="CPUs (default 1)")
    create.add_argument("--memory-mib", type=int, help="memory (default 1024)")
    create.add_argument("--disk-mib", type=int, help="disk (default 5120)")
    create.add_argument("--processes", type=int, help="processes (default 256)")
    create.add_argument("--ttl", type=float, metavar="S", help="seconds to live (default 24 h, 0 for ever)")
    create.add_argument("--idle", type=float, metavar="S", help="seconds unused before it ends (default 1 h)")
    entries(create)
    create.set_defaults(handler="sessions:create_session")


def fill_pull(pull: Parser) -> None:
    pull.add_argument("image", help="NAME[:TAG] or HOST/NAME[:TAG][@sha256:DIGEST]")
    pull.add_argument("--runtime", default="", help="isolates what is run to prepare it: gvisor (default) or container")
    pull.set_defaults(handler="images:pull_image")


def fill_get(get: Parser) -> None:
    get.add_argument("session_id")
    get.set_defaults(handler="sessions:get_session")


def fill_sessions(sessions: Parser) -> None:
    sessions.add_argument("--phase", default="Active", help="Active (default), another phase, or all")
    sessions.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="K[=V]",
        help="only those with this label, whatever its value is without =V; several must all be there",
    )
    sessions.add_argument("--show-labels", action="store_true", help="in the table, too")
    add_all_owners(sessions)
    add_output(sessions)
    sessions.set_defaults(handler="sessions:list_sessions")


def fill_label(label: Parser) -> None:
    label.add_argument("session_id")
    label.add_argument(
        "changes", nargs="*", metavar="CHANGE", help="K=V sets one, K- removes one; without a change, show them"
    )
    label.set_defaults(handler="sessions:label_session")


def fill_destroy(destroy: Parser) -> None:
    destroy.add_argument("session_id")
    destroy.set_defaults(handler="sessions:destroy_session", has_ok=True)


def fill_subagent(subagent: Parser) -> None:
    subagent.add_argument("parent_session_id")
    subagent.set_defaults(handler="sessions:run_subagent")


def fill_status(status: Parser) -> None:
    status.add_argument("--tenant", default="", help="whose shared session to show")
    status.set_defaults(handler="sessions:show_status", starts_server=False)


def fill_workspaces(workspaces: Parser) -> None:
    actions = workspaces.add_subparsers(metavar="list|delete", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="list them", is_json=True)
    add_all_owners(listing)
    add_output(listing)
    listing.set_defaults(handler="sessions:list_workspaces")
    delete = actions.add_parser("delete", help="delete one with all its files", is_json=True)
    delete.add_argument("tenant")
    delete.set_defaults(handler="sessions:delete_workspace", has_ok=True)


def fill_allow_hosts(allow: Parser) -> None:
    allow.add_argument("session", nargs="?", metavar="SESSION", help="whose list (default: the shared session's)")
    allow.add_argument("hosts", nargs="?", metavar="A,B", help="the whole new list; without a change, show it")
    allow.add_argument("--hosts", dest="whole", metavar="A,B", help="the same")
    allow.add_argument("--add", action="append", default=[], metavar="A,B", help="allow these, too")
    allow.add_argument("--remove", action="append", default=[], metavar="A,B", help="no longer these; cuts connections")
    allow.add_argument("--clear", action="store_true", help="allow nothing")
    allow.add_argument("--defaults", action="store_true", help="the server's default list again")
    allow.add_argument("--session-id", default="", help="the same as SESSION")
    allow.add_argument("--tenant", default="", help="whose shared session")
    add_output(allow)
    allow.set_defaults(handler="network:allow_hosts")


def fill_egress(egress: Parser) -> None:
    egress.add_argument("session_id")
    egress.add_argument(
        "--limit", type=int, default=0, metavar="N", help="only the newest (default: all that are kept)"
    )
    egress.add_argument("--follow", action="store_true", help="go on with what comes")
    egress.set_defaults(handler="network:show_egress")
