"""The tree of commands, built from the files that know them."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from k8e import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no public name

__all__ = ["Subparsers", "full_parser", "sandbox_parser"]

TOP = """k8e runs code that nobody trusts, isolated by gVisor, for AI agents and the people who build them.

  k8e sandbox run --lang python "print('hello')"     the first use sets everything up
  k8e sandbox --help                                 sessions, files, background runs
  k8e server status                                  the server behind it
  k8e doctor                                         what this machine can do
"""

GROUPS = ("k8e.cli.run", "k8e.cli.sessions", "k8e.cli.files")
OTHERS = {
    "server": ("k8e.cli.server", "run, look at or stop the server"),
    "doctor": ("k8e.cli.doctor", "check every mechanism for real and say how to mend it"),
    "setup": ("k8e.cli.setup", "install what is missing now instead of at first use"),
}

SANDBOX = """Run programs in sandboxes. Each command prints one JSON line; `error` in it means that we failed,
not the program. Without --session-id, commands share one session that is made at first use.
"""


def full_parser(first: str) -> argparse.ArgumentParser:
    """`k8e …`; only the group that `first` names is filled, the others are just names in the help."""
    parser = argparse.ArgumentParser(prog="k8e", description=TOP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"k8e {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    sandbox = commands.add_parser("sandbox", help="run programs, files, sessions", description=SANDBOX)
    if first == "sandbox":
        fill(sandbox)
    for name, (module, text) in OTHERS.items():
        if first == name:
            importlib.import_module(module).add(commands)
        else:
            commands.add_parser(name, help=text)
    return parser


def sandbox_parser(prog: str) -> argparse.ArgumentParser:
    """`k8e-sandbox …`"""
    parser = argparse.ArgumentParser(prog=prog, description=SANDBOX)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    fill(parser)
    return parser


def fill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint", help="host:port of the server (default: this machine's, started if needed)")
    commands = parser.add_subparsers(metavar="command", required=True)
    for group in GROUPS:
        importlib.import_module(group).add(commands)
