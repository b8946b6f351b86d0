"""`server`, `server start`, `server status`, `server stop`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from k8e.cli import shapes
from k8e.cli.examples import SERVER as SERVER_EXAMPLES
from k8e.cli.output import BAD_INPUT, SERVER, print_json, say
from k8e.client.light.calls import Calls
from k8e.client.light.places import data_dirs, own_data_dir
from k8e.settings import OPTIONS, ServerSettings, load

if TYPE_CHECKING:
    from k8e.cli.grammar import Parser

__all__ = ["chosen_settings", "environment", "fill", "serve", "show_status", "start_server", "stop_server"]

STOP_S = 90.0
DESTROY_S = 600.0


def fill(server: Parser) -> None:
    """The flags of `k8e server` and its actions."""
    server.add_argument("--data-dir", type=Path, help="default: /var/lib/k8e as root, else ~/.local/share/k8e")
    server.add_argument("--config", type=Path, help="a TOML file with the settings below")
    add_settings(server)
    server.add_argument("--disable-sandbox-matrix", action="store_true", help="taken, and without effect here")
    server.set_defaults(local="server:serve")
    actions = server.add_subparsers(metavar="[start|status|stop]", parser_class=type(server))
    start = actions.add_parser(
        "start",
        help="start it in the background, unless it runs; without flags it has the settings of the last one",
        epilog=SERVER_EXAMPLES,
    )
    add_settings(start, default=argparse.SUPPRESS)
    status = actions.add_parser("status", help="print what the server is, has and does", epilog=SERVER_EXAMPLES)
    stop = actions.add_parser("stop", help="stop it; sessions live on for the next start", epilog=SERVER_EXAMPLES)
    stop.add_argument("--destroy", action="store_true", help="destroy every session, too")
    for parser, handler in (
        (start, "server:start_server"),
        (status, "server:show_status"),
        (stop, "server:stop_server"),
    ):
        # A second default would overwrite what was given before the word.
        parser.add_argument("--data-dir", type=Path, default=argparse.SUPPRESS)
        parser.set_defaults(local=handler)
    for parser in (start, stop):
        parser.set_defaults(has_ok=True)


def add_settings(parser: Parser, default: str | None = None) -> None:
    for option in OPTIONS:
        dashed = option.name.replace("_", "-")
        bare = {"nargs": "?", "const": "true"} if option.bare else {}
        names = (f"--{dashed}", f"--sandbox-{dashed}")
        parser.add_argument(*names, dest=option.name, help=option.text, default=default, **bare)  # type: ignore[arg-type]


def environment(args: argparse.Namespace) -> Mapping[str, str]:
    """The process's environment, with the data directory that a flag chose."""
    return {**os.environ, **({"K8E_DATA_DIR": str(args.data_dir.absolute())} if args.data_dir else {})}


def chosen_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerSettings:
    """What flags, environment and file say. Raises: InvalidSpec."""
    flags = {option.name: getattr(args, option.name) for option in OPTIONS}
    return load(own_data_dir(environ), flags=flags, environ=environ, file=args.config)


def serve(args: argparse.Namespace) -> int:
    from k8e.cli.daemon import client_only
    from k8e.errors import InvalidSpec, K8eError
    from k8e.setup.packages import ADMIN_DIRECTORIES

    if trouble := client_only():
        say(trouble)
        return SERVER
    if args.disable_sandbox_matrix:
        say("--disable-sandbox-matrix has no effect: this server is the sandbox matrix and nothing else")
    # What sudo or cron leave of a PATH often does not lead to the tools of the host's administrator.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH") or os.defpath, *ADMIN_DIRECTORIES])
    environ = environment(args)
    try:
        settings = chosen_settings(args, environ)
    except InvalidSpec as error:
        say(str(error))
        return BAD_INPUT
    # Only now: the server's parts are heavy, and a wrong flag should not wait for them.
    from k8e import logs, server
    from k8e.setup.report import Stderr

    logs.configure(settings.log_level, settings.data_dir / "server" / "server.log")
    try:
        server.run(settings, environ=environ, report=Stderr())
    except (K8eError, OSError) as error:
        say(str(error))
        return SERVER
    return 0


def start_server(args: argparse.Namespace) -> int:
    from k8e.cli.calling import guarded
    from k8e.cli.running import ensure_running, is_running, ready_pid

    environ = environment(args)
    if args.config:
        say("--config: is for `k8e server`; a server in the background takes flags and the environment")
        return BAD_INPUT
    given = {option.name: text for option in OPTIONS if (text := getattr(args, option.name))}

    if given and any(map(is_running, data_dirs(environ))):
        say("a server runs already, and keeps its settings; first stop it with `k8e server stop`")
        return BAD_INPUT

    def start() -> int:
        ensure_running(environ, settings=given or None)
        running = next(filter(None, map(ready_pid, data_dirs(environ))), None)
        print_json({"ok": True, "pid": running})
        return 0

    return guarded(start, args)


def show_status(args: argparse.Namespace) -> int:
    from k8e.cli.calling import call

    def show(args: argparse.Namespace, calls: Calls) -> int:
        print_json(shapes.server(calls.unary("ServerStatus", {})))
        return 0

    return call(show, args, environment(args), starts_server=False)


def stop_server(args: argparse.Namespace) -> int:
    from k8e.cli.calling import call
    from k8e.cli.daemon import wait_stopped
    from k8e.cli.running import is_running

    environ = environment(args)
    data_dir = next(filter(is_running, data_dirs(environ)), own_data_dir(environ))
    if not is_running(data_dir) and not args.destroy:
        print_json({"ok": True, "detail": "no server was running"})
        return 0

    def stop(args: argparse.Namespace, calls: Calls) -> int:
        calls.unary("StopServer", {"destroy": args.destroy})
        return 0

    # Without a server, destroying starts one: only the engine knows everything that is left.
    code = call(stop, args, environ, starts_server=args.destroy)
    if code == 0:
        wait_stopped(data_dir, DESTROY_S if args.destroy else STOP_S)
        print_json({"ok": True})
    return code
