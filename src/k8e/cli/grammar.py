"""The tree of commands: their words, flags and examples, and by name the function that does each.

It imports nothing but the parser, and fills in only the commands that appear among the words that were typed.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence

from k8e import __version__
from k8e.cli import examples

TYPE_CHECKING = False  # the module `typing` costs 2 ms
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["BAD_INPUT", "SANDBOX", "TOP", "Parser", "add_connection", "add_output", "full_parser", "sandbox_parser"]

BAD_INPUT = 1


def finite(text: str) -> float:
    """A number for a flag; `nan` and `inf` are none that a server could mean anything by."""
    value = float(text)
    if not float("-inf") < value < float("inf"):
        raise ValueError(text)
    return value


class Parser(argparse.ArgumentParser):
    """A parser whose errors teach: what is wrong, what is near it, where the help is. They are bad input: exit 1."""

    def __init__(self, *, is_json: bool = False, **options: object) -> None:
        # No abbreviations: a flag that is mistyped must not be taken for another one.
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)  # type: ignore[arg-type]
        self.register("type", float, finite)
        self.is_json = is_json
        self.typed: Sequence[str] = ()
        self.takes_command = False
        """Whether what stands behind `--` is a command's own words, and nothing that stands before it is."""

    def parse_known_args(  # type: ignore[override]  # the base has overloads for what nobody here passes
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the base does it, but what is unknown is told by the command it was typed after, not by the root."""
        self.typed = args or ()
        words, behind = before_dashes(args) if args is not None and self.takes_command else (args, [])
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            from k8e.cli import mistakes

            self.error(mistakes.unknown(unknown, self))
        if behind:
            found.argv = [*found.argv, *behind]
        return found, unknown

    def error(self, message: str) -> NoReturn:
        from k8e.cli.mistakes import explain

        explain(self, message, self.typed, is_json=self.is_json)
        raise SystemExit(BAD_INPUT)


def before_dashes(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words before `--`, and those behind it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


Fill = Callable[[Parser], None]


def full_parser(words: Sequence[str] | None) -> Parser:
    """`k8e …`; without words the whole tree with every flag."""
    parser = Parser(prog="k8e", description=examples.TOP)
    parser.add_argument("--version", action="version", version=f"k8e {__version__}")
    below = words[words.index("sandbox") + 1 :] if words and "sandbox" in words else words
    sandbox = {"sandbox": (examples.SANDBOX_IN_SHORT, lambda group: fill_sandbox(group, below))}
    add_commands(parser, {**sandbox, **TOP}, words)
    return parser


def sandbox_parser(prog: str, words: Sequence[str] | None) -> Parser:
    """`k8e-sandbox …`"""
    parser = Parser(prog=prog, description=examples.SANDBOX_IN_SHORT, epilog=examples.SANDBOX)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    fill_sandbox(parser, words)
    return parser


def fill_sandbox(parser: Parser, words: Sequence[str] | None) -> None:
    parser.is_json = True
    add_connection(parser)
    for command in add_commands(parser, SANDBOX, words):
        # A second default would overwrite what was given before the command's word.
        for flag in CONNECTION:
            command.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


CONNECTION = {
    "--endpoint": "host:port of the server (default: this machine's, started if needed)",
    "--apikey": "who you are, where the connection does not say it; better in K8E_SANDBOX_APIKEY",
    "--profile": "a server that was named with `profile add`",
    "--owner": "act for this owner; only for administrators",
}


def add_connection(parser: Parser) -> None:
    """Which server, and as whom."""
    for flag, text in CONNECTION.items():
        parser.add_argument(flag, help=text)


def add_output(parser: Parser, *, default: str = "json") -> None:
    """For commands that list."""
    texts = {"json": "json (default) or table", "table": "table (default) or json"}
    parser.add_argument("--output", choices=["json", "table"], default=default, help=texts[default])


def add_all_owners(parser: Parser) -> None:
    """For lists of what has an owner."""
    parser.add_argument("--all-owners", action="store_true", help="everybody's; only for administrators")


def add_commands(parser: Parser, table: Mapping[str, tuple[str, Fill]], words: Sequence[str] | None) -> list[Parser]:
    """Only the command that was typed; all by name when none was, or all with their flags for the whole tree."""
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=Parser)
    chosen = "" if words is None else first_word(words)
    filled: list[Parser] = []
    for name, (text, fill) in table.items():
        # A parser costs a tenth of a millisecond, and there are dozens.
        if chosen in table and name != chosen:
            continue
        command = commands.add_parser(name, help=text, description=text, is_json=parser.is_json)
        if name == chosen or words is None:
            command.epilog = examples.BY_COMMAND[name]
            fill(command)
            filled.append(command)
    return filled


def first_word(words: Sequence[str]) -> str:
    """What stands where a command does; nothing where there is none."""
    return "".join(words[at] for at in place_of_command(words))


def without_group(words: Sequence[str]) -> list[str]:
    """The words without `sandbox` where the command stands: users of the short names type the group's name again."""
    again = [at for at in place_of_command(words) if words[at] == "sandbox"]
    return [word for at, word in enumerate(words) if at not in again]


def place_of_command(words: Sequence[str]) -> list[int]:
    """Behind flags and their values; nowhere where help is asked for first."""
    flag = ""
    for at, word in enumerate(words):
        if flag not in CONNECTION and not word.startswith("-"):
            return [at]
        if word in {"-h", "--help"}:
            return []
        flag = "" if flag in CONNECTION else word
    return []


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
    add_all_owners(listing)
    listing.set_defaults(handler="secrets:list_secrets")
    delete = actions.add_parser("delete", help="forget one key, or all of a secret", is_json=True)
    delete.add_argument("name", metavar="NAME[:KEY]")
    delete.set_defaults(handler="secrets:delete_secret", has_ok=True)
    add_output(listing)
    for action in (keep, listing, delete):
        add_connection(action)


def fill_doctor(doctor: Parser) -> None:
    doctor.add_argument("--json", action="store_true", help="one JSON line instead of text")
    doctor.add_argument("--fix", action="store_true", help="set up what is missing")
    doctor.add_argument("--data-dir", help="default: /var/lib/k8e as root, else ~/.local/share/k8e")
    doctor.set_defaults(local="doctor:examine")


def fill_setup(setup: Parser) -> None:
    setup.add_argument("--data-dir", help="default: /var/lib/k8e as root, else ~/.local/share/k8e")
    setup.set_defaults(local="setup:provision")


def lazily(name: str) -> Fill:
    """A function of `k8e.cli.flags`, loaded when its command was typed."""

    def fill(parser: Parser) -> None:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(f"k8e.cli.flags.{module}"), function)(parser)

    return fill


SANDBOX: Mapping[str, tuple[str, Fill]] = {
    "run": ("run a program in the sandbox", lazily("programs:fill_run")),
    "runs": ("list the background runs of a session", lazily("programs:fill_runs")),
    "poll": ("show a background run and its output so far", lazily("programs:fill_poll")),
    "kill-run": ("end a background run and everything it started", lazily("programs:fill_kill_run")),
    "execs": (
        "list what was started in a session, in front, in the background and on terminals",
        lazily("programs:fill_execs"),
    ),
    "follow": ("read the output of one of these beside its caller", lazily("programs:fill_follow")),
    "input": ("give one of these input, behind all that others have given", lazily("programs:fill_input")),
    "signal": ("signal one of these by its id", lazily("programs:fill_signal")),
    "create": ("make a session of your own", lazily("sessions:fill_create")),
    "pull": ("get an image ready for sessions", lazily("sessions:fill_pull")),
    "get": ("show one session", lazily("sessions:fill_get")),
    "sessions": ("list your sessions", lazily("sessions:fill_sessions")),
    "label": ("show or change the labels of a session", lazily("sessions:fill_label")),
    "destroy": ("end a session and everything in it", lazily("sessions:fill_destroy")),
    "subagent": ("make a child session that shares the parent's /workspace", lazily("sessions:fill_subagent")),
    "status": ("is the service up, and which session is shared; never starts it", lazily("sessions:fill_status")),
    "workspaces": ("list or delete the workspaces that outlive their sessions", lazily("sessions:fill_workspaces")),
    "allow-hosts": ("show or change which hosts a session may reach, at once", lazily("sessions:fill_allow_hosts")),
    "egress": ("show what a session asked of the network and was told", lazily("sessions:fill_egress")),
    "write": ("write standard input to a file", lazily("files:fill_write")),
    "read": ("print a file", lazily("files:fill_read")),
    "list": ("list the files below /workspace", lazily("files:fill_list")),
    "cp": ("copy files and trees between here and a session", lazily("files:fill_cp")),
    "shell": ("open an interactive terminal in a session", lazily("history:fill_shell")),
    "forward": ("reach servers inside a session through ports of this machine", lazily("history:fill_forward")),
    "log": ("print what was run in a session and what it printed", lazily("history:fill_log")),
    "events": ("show what happened to a session", lazily("history:fill_events")),
    "ps": ("list the processes in a session", lazily("history:fill_ps")),
    "top": ("watch what sessions use", lazily("history:fill_top")),
    "confirm": ("ask a person to allow something, and wait for the answer", lazily("access:fill_confirm")),
    "approve": ("allow or reject what somebody else asked for", lazily("access:fill_approve")),
    "approvals": ("list what waits for an answer", lazily("access:fill_approvals")),
    "whoami": ("show who the server takes you for", lazily("access:fill_whoami")),
    "connect": ("check a server and use it from now on", lazily("access:fill_connect")),
    "login": ("trade an API key for a certificate of your own", lazily("access:fill_login")),
    "profile": ("name servers: list, use, add, remove", lazily("access:fill_profile")),
    "benchmark": ("measure creating and using sessions, cold and warm", lazily("access:fill_benchmark")),
    "doctor": ("check every mechanism for real and say how to mend it", fill_doctor),
    "catalog": ("print every command and flag as JSON, for programs", lazily("access:fill_catalog")),
    "completion": ("print the completion script of a shell", lazily("access:fill_completion")),
}

TOP: Mapping[str, tuple[str, Fill]] = {
    "completion": ("print the completion script of a shell", lazily("access:fill_completion")),
    "secret": ("keep values for sessions on the server: set, list, delete", fill_secret),
    "sandbox-apikey": ("make, list and delete API keys for other machines and people", lazily("keys:fill_apikey")),
    "audit": ("check and read the record of who did what", lazily("audit:fill_audit")),
    "sandbox-mcp": ("give an agent its sandboxes: an MCP server, as agents start it", lazily("mcp:fill_mcp")),
    "sandbox-install-skill": ("make agents know the sandbox: entry and skill", lazily("skills:fill_install")),
    "a2a": ("serve other agents: an agent of the A2A protocol that runs their code", lazily("a2a:fill_a2a")),
    "server": ("run, look at or stop the server", fill_server),
    "doctor": ("check every mechanism for real and say how to mend it", fill_doctor),
    "setup": ("install what is missing now instead of at first use", fill_setup),
}
