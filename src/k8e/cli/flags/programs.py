"""Flags of `run` and its relatives."""

from __future__ import annotations

from k8e.cli.grammar import Parser, add_output

__all__ = [
    "entries",
    "fill_execs",
    "fill_follow",
    "fill_input",
    "fill_kill_run",
    "fill_poll",
    "fill_run",
    "fill_runs",
    "fill_signal",
]


def fill_run(run: Parser) -> None:
    run.add_argument("code", nargs="?", help="the program; without it, or for -, standard input is the program")
    run.add_argument(
        "-n",
        "--no-input",
        action="store_true",
        help="the program reads nothing; else it gets standard input where that is a pipe or a file",
    )
    run.add_argument(
        "-i",
        "--input",
        action="store_true",
        help="with --background: its input stays open for `input`, by its run_id (default: it reads nothing)",
    )
    run.add_argument("--lang", default="bash", help="python, bash (default), node or ts")
    run.add_argument("--session-id", default="", help="run there instead of in the shared session")
    run.add_argument("--tenant", default="", help="a name under which session and workspace are found again")
    run.add_argument("--timeout", type=float, metavar="S", help="seconds (default 30; none with --background)")
    run.add_argument("--allowed-hosts", metavar="A,B", help="first give the session this list of hosts")
    run.add_argument(
        "--raw",
        action="store_true",
        help="no JSON: stdout to stdout, stderr to stderr, as they come (at a terminal without what would steer it)",
    )
    run.add_argument("--background", action="store_true", help="start it and print its run_id")
    entries(run)
    run.set_defaults(handler="run:run_program")


def entries(command: Parser) -> None:
    """What fills /workspace first; `create` has them, too."""
    command.add_argument("--manifest", metavar="FILE", help="YAML with entries: file, dir or gitRepo")
    command.add_argument("--git-repo", metavar="URL", help="clone it below /workspace first")
    command.add_argument("--git-ref", default="main", metavar="REF", help="its branch or tag (default main)")
    command.add_argument("--git-path", default="repo", metavar="DIR", help="where to (default repo)")


def fill_poll(poll: Parser) -> None:
    poll.add_argument("run_id")
    poll.set_defaults(handler="run:poll_run")


def fill_runs(runs: Parser) -> None:
    runs.add_argument("session_id", nargs="?", default="", metavar="SESSION", help="default: the shared session")
    runs.add_argument("--tenant", default="", help="whose shared session")
    add_output(runs)
    runs.set_defaults(handler="runs:list_runs")


def fill_kill_run(kill: Parser) -> None:
    kill.add_argument("run_id")
    kill.add_argument("--signal", type=int, default=9, help="signal number (default 9)")
    kill.set_defaults(handler="run:kill_run", has_ok=True)


def fill_execs(execs: Parser) -> None:
    execs.add_argument("session_id", nargs="?", default="", metavar="SESSION", help="default: the shared session")
    execs.add_argument("--tenant", default="", help="whose shared session")
    add_output(execs)
    execs.set_defaults(handler="execs:list_execs")


def fill_follow(follow: Parser) -> None:
    one_exec(follow)
    for stream in ("stdout", "stderr"):
        follow.add_argument(
            f"--{stream}-offset", type=int, default=0, metavar="N", help=f"{stream} from this byte on (default 0)"
        )
    follow.set_defaults(handler="execs:follow_exec")


def fill_input(giving: Parser) -> None:
    one_exec(giving)
    giving.add_argument("text", nargs="?", help="one line; without it standard input is passed on as it is")
    giving.add_argument("--eof", action="store_true", help="nothing comes after this: the program reads end-of-file")
    giving.set_defaults(handler="execs:send_input", has_ok=True)


def fill_signal(signal: Parser) -> None:
    one_exec(signal)
    signal.add_argument(
        "signal", nargs="?", type=int, default=15, help="signal number (default 15; 9 ends all it started)"
    )
    signal.set_defaults(handler="execs:signal_exec", has_ok=True)


def one_exec(command: Parser) -> None:
    command.add_argument("exec_id", metavar="EXEC_ID", help="from `execs`; also a run_id or a terminal_id")
    command.add_argument("--session-id", default="", help="where it runs (default: the shared session)")
    command.add_argument("--tenant", default="", help="whose shared session")
