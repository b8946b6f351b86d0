"""`log`, `events` and `ps`: what happened in a session, and what happens now."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping

from k8e.cli.output import print_json, print_rows, program_output
from k8e.client.errors import InvalidRequest, NotFound
from k8e.client.light.calls import Answer, Calls

__all__ = ["show_events", "show_log", "show_processes"]

FOLLOW_S = 0.2
TAIL_BYTES = 64 * 1024
BEHIND_THE_END = 2**62
"""An offset at which the server answers with the end."""
PROCESS_COLUMNS = ("pid", "state", "comm", "args")
EVENT_COLUMNS = ("time", "event", "detail")


def show_log(args: argparse.Namespace, calls: Calls) -> int:
    """Text as it is; with `--follow` until the session ends."""
    if args.offset < 0 or args.limit < 0 or (args.tail or 0) < 0:
        raise InvalidRequest("offset, limit, tail: must be 0 or more")
    if args.tail is not None and (args.offset or args.limit):
        raise InvalidRequest("tail: counts lines from the end; leave out --offset and --limit")
    with program_output(sys.stdout) as pass_on:
        if args.tail is None:
            follow(args, calls, pass_on, args.offset)
            return 0
        end = read(args.session_id, calls, BEHIND_THE_END, 1).number("offset")
        pass_on(as_bytes(last_lines(args.session_id, calls, end, args.tail)))
        if args.follow:
            follow(args, calls, pass_on, end)
    return 0


def last_lines(session_id: str, calls: Calls, end: int, count: int) -> str:
    """The last lines before an offset: more and more is read until there are enough, or nothing comes before."""
    size = TAIL_BYTES
    while True:
        begin = max(end - size, 0)
        text, first = between(session_id, calls, begin, end)
        # The first line may have begun before, and older text may be no longer there.
        if text.count("\n") > count or first > begin or begin == 0:
            lines = text.removesuffix("\n").rsplit("\n", count)[-count:]
            return "\n".join(lines) + text[-1:] if count else ""
        size *= 4


def between(session_id: str, calls: Calls, begin: int, end: int) -> tuple[str, int]:
    """The text between two offsets, and where what is still there of it begins."""
    pages: list[Answer] = []
    at = begin
    while at < end:
        page = read(session_id, calls, at, end - at)
        pages.append(page)
        if page.number("next_offset") <= at:
            break
        at = page.number("next_offset")
    return "".join(page.text("output") for page in pages), pages[0].number("offset") if pages else begin


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def follow(args: argparse.Namespace, calls: Calls, pass_on: Callable[[bytes], None], offset: int) -> None:
    page = read(args.session_id, calls, offset, args.limit)
    left = args.limit
    while True:
        pass_on(as_bytes(page.text("output")))
        left -= page.number("next_offset") - page.number("offset")
        if args.limit and left <= 0:
            return
        if page.flag("eof"):
            if not args.follow:
                return
            time.sleep(FOLLOW_S)
        try:
            page = read(args.session_id, calls, page.number("next_offset"), left if args.limit else 0)
        except NotFound:
            return  # it was there a moment ago: the session has ended


def read(session_id: str, calls: Calls, offset: int, limit: int) -> Answer:
    return calls.unary("GetTranscript", {"session_id": session_id, "offset": offset, "limit": limit})


def show_events(args: argparse.Namespace, calls: Calls) -> int:
    found = calls.unary("GetEvents", {"session_id": args.session_id, "limit": args.limit})
    events = [event(each) for each in found.texts("events")]
    if args.output == "table":
        print_rows(args, "events", [in_columns(each) for each in events], EVENT_COLUMNS, is_cut=True)
        return 0
    print_json({"events": events, "returned": found.number("returned"), "truncated": found.flag("truncated")})
    return 0


def event(text: str) -> dict[str, object]:
    """The object that an event is; what is none, as it may come from another server, keeps its text."""
    try:
        value = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"text": text}


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def in_columns(event: Mapping[str, object]) -> dict[str, object]:
    """When, what, and the rest of it in words: events differ in what else they have."""
    rest = {name: value for name, value in event.items() if name not in {"seq", "time", "session_id", "event"}}
    words = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in rest.items())
    return {"time": event.get("time"), "event": event.get("event"), "detail": " ".join(words)}


def show_processes(args: argparse.Namespace, calls: Calls) -> int:
    found = calls.unary("GetProcesses", {"session_id": args.session_id}).each("processes")
    rows: list[dict[str, object]] = [
        {
            "pid": each.number("pid"),
            "comm": each.text("comm"),
            "state": each.text("state"),
            "args": each.text("args"),
        }
        for each in found
    ]
    print_rows(args, "processes", rows, PROCESS_COLUMNS, is_cut=True)
    return 0
