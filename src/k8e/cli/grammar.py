"""The tree of commands: their words, flags and examples, and by name the function that does each.

It imports nothing but the parser, and fills in only the commands that appear among the words that were typed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from k8e import __version__
from k8e.cli import examples

TYPE_CHECKING = False  # the module `typing` costs 2 ms
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["BAD_INPUT", "SANDBOX", "TOP", "Parser", "full_parser", "sandbox_parser"]

BAD_INPUT = 1


class Parser(argparse.ArgumentParser):
    """A parser whose errors teach: what is wrong, what is near it, where the help is. They are bad input: exit 1."""

    def __init__(self, *, is_json: bool = False, **options: object) -> None:
        # No abbreviations: a flag that is mistyped must not be taken for another one.
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)  # type: ignore[arg-type]
        self.is_json = is_json

    def parse_known_args(  # type: ignore[override]  # the base has overloads for what nobody here passes
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the base does it, but what is unknown is told by the command it was typed after, not by the root."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        from k8e.cli.mistakes import explain

        explain(self, message, is_json=self.is_json)
        raise SystemExit(BAD_INPUT)


Fill = Callable[[Parser], None]


def full_parser(words: Sequence[str]) -> Parser:
    """`k8e …`"""
    parser = Parser(prog="k8e", description=examples.TOP)
    parser.add_argument("--version", action="version", version=f"k8e {__version__}")
    sandbox = {"sandbox": (examples.SANDBOX_IN_SHORT, lambda group: fill_sandbox(group, words))}
    add_commands(parser, {**sandbox, **TOP}, words)
    return parser


def sandbox_parser(prog: str, words: Sequence[str]) -> Parser:
    """`k8e-sandbox …`"""
    parser = Parser(prog=prog, description=examples.SANDBOX_IN_SHORT, epilog=examples.SANDBOX)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    fill_sandbox(parser, words)
    return parser


def fill_sandbox(parser: Parser, words: Sequence[str]) -> None:
    parser.is_json = True
    parser.add_argument("--endpoint", help="host:port of the server (default: this machine's, started if needed)")
    for command in add_commands(parser, SANDBOX, words):
        # A second default would overwrite what was given before the command's word.
        command.add_argument("--endpoint", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_commands(parser: Parser, table: Mapping[str, tuple[str, Fill]], words: Sequence[str]) -> list[Parser]:
    """One parser per command; only those that were typed get their flags."""
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    typed: list[Parser] = []
    for name, (text, fill) in table.items():
        command = commands.add_parser(name, help=text, description=text, is_json=parser.is_json)
        if name in words:
            command.epilog = examples.BY_COMMAND[name]
            fill(command)
            typed.append(command)
    return typed


def fill_run(run: Parser) -> None:
    run.add_argument("code", nargs="?", help="the program; without it, standard input")
    run.add_argument("--lang", default="bash", help="python, bash (default), node or ts")
    run.add_argument("--session-id", default="", help="run there instead of in the shared session")
    run.add_argument("--tenant", default="", help="a name under which session and workspace are found again")
    run.add_argument("--timeout", type=float, metavar="S", help="seconds (default 30; none with --background)")
    run.add_argument("--allowed-hosts", metavar="A,B", help="first give the session this list of hosts")
    run.add_argument("--raw", action="store_true", help="no JSON: stdout to stdout, stderr to stderr, as they come")
    run.add_argument("--background", action="store_true", help="start it and print its run_id")
    run.set_defaults(handler="run:run_program")


def fill_poll(poll: Parser) -> None:
    poll.add_argument("run_id")
    poll.set_defaults(handler="run:poll_run")


def fill_kill_run(kill: Parser) -> None:
    kill.add_argument("run_id")
    kill.add_argument("--signal", type=int, default=9, help="signal number (default 9)")
    kill.set_defaults(handler="run:kill_run", has_ok=True)


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
    create.add_argument("--secret", action="append", default=[], metavar="ENV=NAME:KEY", help="a secret as a variable")
    create.add_argument(
        "--broker",
        action="append",
        default=[],
        metavar="ENV=NAME:KEY@HOST[/HEADER]",
        help="a secret that stays outside: its placeholder is swapped on the way to that host",
    )
    create.add_argument("--image", default="", help="host (default), a root directory, or an OCI layout")
    create.add_argument("--cpus", type=float, help="CPUs (default 1)")
    create.add_argument("--memory-mib", type=int, help="memory (default 512)")
    create.add_argument("--disk-mib", type=int, help="disk (default 1024)")
    create.add_argument("--processes", type=int, help="processes (default 256)")
    create.add_argument("--ttl", type=float, metavar="S", help="seconds to live (default 24 h, 0 for ever)")
    create.add_argument("--idle", type=float, metavar="S", help="seconds unused before it ends (default 1 h)")
    create.set_defaults(handler="sessions:create_session")


def fill_get(get: Parser) -> None:
    get.add_argument("session_id")
    get.set_defaults(handler="sessions:get_session")


def fill_sessions(sessions: Parser) -> None:
    sessions.add_argument("--phase", default="Active", help="Active (default), another phase, or all")
    sessions.set_defaults(handler="sessions:list_sessions")


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
    listing.set_defaults(handler="sessions:list_workspaces")
    delete = actions.add_parser("delete", help="delete one with all its files", is_json=True)
    delete.add_argument("tenant")
    delete.set_defaults(handler="sessions:delete_workspace", has_ok=True)


def fill_allow_hosts(allow: Parser) -> None:
    allow.add_argument("hosts", nargs="?", metavar="A,B", help="the whole new list")
    allow.add_argument("--hosts", dest="whole", metavar="A,B", help="the same")
    allow.add_argument("--add", action="append", default=[], metavar="A,B", help="allow these, too")
    allow.add_argument("--remove", action="append", default=[], metavar="A,B", help="no longer these; cuts connections")
    allow.add_argument("--clear", action="store_true", help="allow nothing")
    allow.add_argument("--session-id", default="", help="there instead of in the shared session")
    allow.add_argument("--tenant", default="", help="whose shared session")
    allow.set_defaults(handler="network:allow_hosts")


def fill_egress(egress: Parser) -> None:
    egress.add_argument("session_id")
    egress.add_argument(
        "--limit", type=int, default=0, metavar="N", help="only the newest (default: all that are kept)"
    )
    egress.add_argument("--follow", action="store_true", help="go on with what comes")
    egress.set_defaults(handler="network:show_egress")


def fill_write(write: Parser) -> None:
    write.add_argument("session_id")
    write.add_argument("path", help="relative paths are below /workspace")
    write.add_argument("--mode", choices=["w", "a"], default="w", help="write (default) or append")
    write.set_defaults(handler="files:write_file", has_ok=True)


def fill_read(read: Parser) -> None:
    read.add_argument("session_id")
    read.add_argument("path", help="relative paths are below /workspace")
    read.add_argument("--raw", action="store_true", help="no JSON: the file's exact bytes")
    read.set_defaults(handler="files:read_file")


def fill_list(listing: Parser) -> None:
    listing.add_argument("session_id")
    listing.add_argument("--since", type=int, default=0, metavar="UNIX_SECONDS", help="only those changed since")
    listing.set_defaults(handler="files:list_files")


def fill_server(server: Parser) -> None:
    from k8e.cli.server import fill

    fill(server)


def fill_secret(secret: Parser) -> None:
    secret.is_json = True
    actions = secret.add_subparsers(metavar="set|list|delete", required=True, parser_class=Parser)
    keep = actions.add_parser("set", help="keep a value: standard input, or asked for", is_json=True)
    keep.add_argument("name", metavar="NAME[:KEY]")
    keep.add_argument("--from-file", metavar="FILE", help="the file's exact bytes")
    keep.set_defaults(handler="secrets:set_secret", has_ok=True)
    listing = actions.add_parser("list", help="list names and keys; values are never shown", is_json=True)
    listing.set_defaults(handler="secrets:list_secrets")
    delete = actions.add_parser("delete", help="forget one key, or all of a secret", is_json=True)
    delete.add_argument("name", metavar="NAME[:KEY]")
    delete.set_defaults(handler="secrets:delete_secret", has_ok=True)
    for action in (keep, listing, delete):
        action.add_argument("--endpoint", help="host:port of the server (default: this machine's)")


def fill_doctor(doctor: Parser) -> None:
    doctor.add_argument("--json", action="store_true", help="one JSON line instead of text")
    doctor.add_argument("--fix", action="store_true", help="set up what is missing")
    doctor.add_argument("--data-dir", help="default: /var/lib/k8e as root, else ~/.local/share/k8e")
    doctor.set_defaults(local="doctor:examine")


def fill_setup(setup: Parser) -> None:
    setup.add_argument("--data-dir", help="default: /var/lib/k8e as root, else ~/.local/share/k8e")
    setup.set_defaults(local="setup:provision")


SANDBOX: Mapping[str, tuple[str, Fill]] = {
    "run": ("run a program in the sandbox", fill_run),
    "poll": ("show a background run and its output so far", fill_poll),
    "kill-run": ("end a background run and everything it started", fill_kill_run),
    "create": ("make a session of your own", fill_create),
    "get": ("show one session", fill_get),
    "sessions": ("list your sessions", fill_sessions),
    "destroy": ("end a session and everything in it", fill_destroy),
    "subagent": ("make a child session that shares the parent's /workspace", fill_subagent),
    "status": ("is the service up, and which session is shared; never starts it", fill_status),
    "workspaces": ("list or delete the workspaces that outlive their sessions", fill_workspaces),
    "allow-hosts": ("show or change which hosts a session may reach, at once", fill_allow_hosts),
    "egress": ("show what a session asked of the network and was told", fill_egress),
    "write": ("write standard input to a file", fill_write),
    "read": ("print a file", fill_read),
    "list": ("list the files below /workspace", fill_list),
}

TOP: Mapping[str, tuple[str, Fill]] = {
    "secret": ("keep values for sessions on the server: set, list, delete", fill_secret),
    "server": ("run, look at or stop the server", fill_server),
    "doctor": ("check every mechanism for real and say how to mend it", fill_doctor),
    "setup": ("install what is missing now instead of at first use", fill_setup),
}
