"""Flags of commands that look at a session or into it: its log, events, processes, ports, and what it uses."""

from __future__ import annotations

from k8e.cli.grammar import Parser, add_all_owners, add_output

__all__ = ["fill_events", "fill_forward", "fill_log", "fill_ps", "fill_shell", "fill_top"]


def fill_log(log: Parser) -> None:
    log.add_argument("session_id")
    log.add_argument("--offset", type=int, default=0, metavar="N", help="from this byte on (default 0)")
    log.add_argument("--limit", type=int, default=0, metavar="N", help="at most so many bytes (default: all)")
    log.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    log.add_argument("--follow", action="store_true", help="go on with what comes, until the session ends")
    log.set_defaults(handler="history:show_log", raw=True)


def fill_events(events: Parser) -> None:
    events.add_argument("session_id")
    events.add_argument("--limit", type=int, default=500, metavar="N", help="only the newest (default 500)")
    add_output(events)
    events.set_defaults(handler="history:show_events")


def fill_ps(processes: Parser) -> None:
    processes.add_argument("session_id")
    add_output(processes)
    processes.set_defaults(handler="history:show_processes")


def fill_top(top: Parser) -> None:
    top.add_argument("--once", action="store_true", help="print one table and end")
    top.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (default 2)")
    add_all_owners(top)
    add_output(top, default="table")
    top.set_defaults(handler="top:show_top", starts_server=False)


def fill_forward(forward: Parser) -> None:
    forward.add_argument(
        "words",
        nargs="+",
        metavar="[SESSION] [LOCAL:]REMOTE",
        help="a session (default: the shared one), then ports: 8080:8000 is port 8080 here and port 8000 inside, 8000 is "
        "the same on both sides, 0:8000 takes any local port that is free; the line that is printed has it",
    )
    forward.add_argument(
        "--address",
        default="127.0.0.1",
        help="where to listen (default 127.0.0.1: only this machine; 0.0.0.0 lets everybody in who reaches it)",
    )
    forward.add_argument("--tenant", default="", help="whose shared session")
    forward.set_defaults(handler="forward:forward_ports", uses_sdk=True)


def fill_shell(shell: Parser) -> None:
    shell.takes_command = True
    shell.add_argument("session_id", nargs="?", default="", metavar="SESSION", help="default: the shared session")
    shell.add_argument("argv", nargs="*", metavar="command", help="instead of /bin/bash; put -- before it")
    shell.add_argument("--tenant", default="", help="whose shared session")
    shell.set_defaults(handler="shell:open_shell", raw=True)
