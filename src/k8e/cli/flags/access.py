"""Flags of commands about approvals, and about who the caller is and where the server."""

from __future__ import annotations

from k8e.cli.grammar import Parser, add_all_owners, add_output

__all__ = [
    "fill_approvals",
    "fill_approve",
    "fill_benchmark",
    "fill_catalog",
    "fill_completion",
    "fill_confirm",
    "fill_connect",
    "fill_login",
    "fill_profile",
    "fill_whoami",
]


def fill_confirm(confirm: Parser) -> None:
    confirm.add_argument("session_id")
    confirm.add_argument("action", help="what a person is asked to allow")
    confirm.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds to wait (default 30)")
    confirm.add_argument("--no-wait", action="store_true", help="print the id at once instead of waiting")
    confirm.set_defaults(handler="approvals:confirm")


def fill_approve(approve: Parser) -> None:
    approve.add_argument("approval_id")
    approve.add_argument("--reject", action="store_true", help="say no")
    approve.add_argument("--reason", default="", help="a word to whoever asked")
    approve.set_defaults(handler="approvals:approve", has_ok=True)


def fill_approvals(approvals: Parser) -> None:
    approvals.add_argument("action", nargs="?", choices=["list"], help="list them, which it does anyway")
    approvals.add_argument("--all", action="store_true", help="also those that are decided or expired")
    add_all_owners(approvals)
    add_output(approvals)
    approvals.set_defaults(handler="approvals:list_approvals")


def fill_whoami(whoami: Parser) -> None:
    whoami.set_defaults(handler="sessions:who_am_i")


def fill_catalog(catalog: Parser) -> None:
    catalog.set_defaults(local="catalog:show")


def fill_completion(completion: Parser) -> None:
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(local="completion:show")


def fill_benchmark(benchmark: Parser) -> None:
    benchmark.add_argument("--iterations", type=int, default=3, metavar="N", help="of each kind (default 3)")
    benchmark.add_argument("--pool-size", type=int, default=3, metavar="N", help="warm sessions to use (default 3)")
    benchmark.add_argument("--runtime", default="", help="gvisor (default) or container")
    benchmark.set_defaults(handler="benchmark:measure")


def fill_connect(connect: Parser) -> None:
    connect.add_argument("--skip-verify", action="store_true", help="store the endpoint without asking the server")
    connect.add_argument("--reset-certs", action="store_true", help="first forget the certificates of a former server")
    connect.add_argument(
        "--agent", default="auto", help="whose skill to install (default: of all that are in use here)"
    )
    connect.add_argument("--skip-skill", action="store_true", help="install no skill")
    connect.add_argument("--skill-only", action="store_true", help="install the skill, and leave the server alone")
    connect.add_argument("--skip-path", action="store_true", help="accepted; nothing is put on your PATH")
    trust(connect)
    connect.set_defaults(local="connect:connect")


def fill_login(login: Parser) -> None:
    trust(login)
    login.set_defaults(local="login:login", has_ok=True)


def trust(command: Parser) -> None:
    """How a first contact is made safe."""
    command.add_argument("--device-name", default="", help="how the server's list calls this machine")
    command.add_argument("--ca-fingerprint", default="", metavar="SHA256", help="the server's CA, as it prints it")
    command.add_argument("--trust-first-use", action="store_true", help="trust whoever answers; better pin the CA")


def fill_profile(profile: Parser) -> None:
    actions = profile.add_subparsers(metavar="list|use|add|remove", required=True, parser_class=Parser)
    listing = actions.add_parser("list", help="list them", is_json=True)
    add_output(listing)
    listing.set_defaults(local="profile:show")
    use = actions.add_parser("use", help="use it when no other is named", is_json=True)
    use.set_defaults(local="profile:use")
    add = actions.add_parser("add", help="add one, or change it", is_json=True)
    add.add_argument("--cert-dir", default="", metavar="DIR", help="where its certificates lie")
    add.add_argument("--device-name", default="", help="how the server's list calls this machine")
    add.set_defaults(local="profile:add")
    remove = actions.add_parser("remove", help="forget one", is_json=True)
    remove.set_defaults(local="profile:remove")
    for action in (use, add, remove):
        action.add_argument("name")
        # `profile add` names an endpoint for later; here that word must not mean the server to talk to.
    add.add_argument("address", metavar="endpoint", help="host:port")
