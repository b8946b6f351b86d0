"""`top`: a live table of sessions with the CPU and memory they use."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from k8e.cli import shapes
from k8e.cli.keyboard import key_by_key
from k8e.cli.output import print_json
from k8e.cli.person import pieces, size
from k8e.cli.table import lines
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Calls, listed

__all__ = ["Reading", "read", "rows", "show_top"]

ONCE_S = 0.5
"""Between the two readings that make a rate."""
CLEAR = "\x1b[H\x1b[2J"
COLUMNS = ("session_id", "runtime_class", "cpu_percent", "memory_bytes", "processes", "background_runs", "tenant_id")

Whose = tuple[str, str]
"""An owner and one of its sessions: two owners may have chosen the same id."""


class Reading(NamedTuple):
    at_s: float
    sessions: dict[Whose, dict[str, object]]
    cpu_s: dict[Whose, float]


def show_top(args: argparse.Namespace, calls: Calls) -> int:
    if not 0.1 <= args.interval <= 3600:
        raise InvalidRequest("interval: must be 0.1-3600 seconds")
    if not args.once and sys.stdin.isatty() and sys.stdout.isatty():
        with key_by_key(is_raw=False):
            try:
                watch(args, calls, key_q)
            finally:
                sys.stdout.write("\n")
    else:
        watch(args, calls, time_passes)
    return 0


def watch(args: argparse.Namespace, calls: Calls, is_over: Callable[[float], bool]) -> None:
    """Show what is used since the last look, again and again; `is_over` waits between two looks."""
    before = read(args, calls)
    while not is_over(ONCE_S if args.once else args.interval):
        now = read(args, calls)
        show(args, rows(before, now))
        if args.once:
            return
        before = now


def time_passes(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def key_q(seconds: float) -> bool:
    """Whether the key to leave was typed meanwhile, or no key ever will be."""
    import select

    end = time.monotonic() + seconds
    while select.select([sys.stdin], [], [], max(end - time.monotonic(), 0))[0]:
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or b"q" in keys.lower():
            return True
    return False


def read(args: argparse.Namespace, calls: Calls) -> Reading:
    found = listed(calls, "ListSessions", {"with_usage": True, **shapes.everybodys(args)}, "sessions")
    sessions: dict[Whose, dict[str, object]] = {}
    cpu_s: dict[Whose, float] = {}
    for each in found:
        whose, usage = (each.text("owner"), each.text("session_id")), each.one("usage")
        cpu_s[whose] = usage.decimal("cpu_s")
        sessions[whose] = {
            "session_id": each.text("session_id"),
            "runtime_class": each.text("runtime_class"),
            "memory_bytes": usage.number("memory_bytes"),
            "processes": usage.number("processes"),
            "background_runs": each.number("background_runs"),
            "tenant_id": each.text("tenant_id"),
            "owner": each.text("owner"),
        }
    return Reading(time.monotonic(), sessions, cpu_s)


def rows(before: Reading, now: Reading) -> list[dict[str, object]]:
    """The busiest first; a session that is new has no rate yet."""
    passed = max(now.at_s - before.at_s, 1e-6)
    shown = [
        {
            **session,
            "cpu_percent": round(
                max(now.cpu_s[whose] - before.cpu_s.get(whose, now.cpu_s[whose]), 0) / passed * 100, 1
            ),
        }
        for whose, session in now.sessions.items()
    ]
    return sorted(shown, key=lambda row: (-float(str(row["cpu_percent"])), str(row["session_id"])))


def show(args: argparse.Namespace, shown: list[dict[str, object]]) -> None:
    if args.output == "json":
        print_json({"sessions": shown})
        return
    table = lines(shown, (*COLUMNS, "owner") if args.all_owners else COLUMNS)
    if args.once or not sys.stdout.isatty():
        sys.stdout.write("\n".join(table) + "\n")
    else:
        height, width = size(sys.stdout.fileno())
        sys.stdout.write(CLEAR + "\n".join(next(pieces(line, width)) for line in [*table[: height - 2], "q leaves"]))
    sys.stdout.flush()
