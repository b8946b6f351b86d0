"""`execs`, `follow`, `input` and `signal`: what callers have started in a session, and what others may do with it."""

from __future__ import annotations

import argparse
import os
import sys

from k8e.cli.output import print_json, print_rows, program_output, say
from k8e.cli.run import STDERR, explained
from k8e.cli.sharing import shared
from k8e.client.errors import InvalidRequest, ServerFailed
from k8e.client.light.calls import Answer, Calls, Request, encoded, listed

__all__ = ["follow_exec", "list_execs", "send_input", "signal_exec"]

COLUMNS = ("exec_id", "pid", "running", "takes_input", "has_terminal", "started_at", "command")
PIECE = 256 * 1024
WRITE_S = 60.0


def list_execs(args: argparse.Namespace, calls: Calls) -> int:
    """Oldest first. Where there is no session there is nothing in it; none is made for the question."""
    session_id = args.session_id or known_session(args)
    found = listed(calls, "ListExecs", {"session_id": session_id}, "execs") if session_id else []
    print_rows(args, "execs", [row(each) for each in found], COLUMNS, is_cut=True)
    if args.output == "table" and found:
        say(f"to read one beside its caller:  k8e sandbox follow {found[-1].text('exec_id')}")
    return 0


def row(each: Answer) -> dict[str, object]:
    return {
        "exec_id": each.text("exec_id"),
        "pid": each.number("pid"),
        "running": each.flag("running"),
        "takes_input": each.flag("takes_input"),
        "has_terminal": each.flag("has_terminal"),
        "is_kept": each.flag("is_kept"),
        "started_at": each.decimal("started_at"),
        "command": each.text("command"),
    }


def follow_exec(args: argparse.Namespace, calls: Calls) -> int:
    """Its streams as they come; the exit code is its own. Leaving does nothing to it."""
    if args.stdout_offset < 0 or args.stderr_offset < 0:
        raise InvalidRequest("stdout-offset, stderr-offset: must be 0 or more")
    offsets = {"stdout_offset": str(args.stdout_offset), "stderr_offset": str(args.stderr_offset)}
    request = {**named(args), **offsets, "follow": True}
    with program_output(sys.stdout) as out, program_output(sys.stderr) as err:
        for item in calls.stream("AttachExec", [request], timeout_s=None):
            if item.has("chunk"):
                chunk = item.one("chunk")
                (err if chunk.text("channel") in STDERR else out)(chunk.data("data"))
            elif item.has("exit"):
                end = item.one("exit")
                if end.flag("truncated"):
                    say("some of its output is not here: it was printed before, or faster than it was read")
                return explained(end)
    raise ServerFailed("the server ended the stream without an exit code")


def send_input(args: argparse.Namespace, calls: Calls) -> int:
    """Standard input, or the text that is given, behind all that others have sent."""
    if args.text is None and sys.stdin.isatty() and not args.eof:
        raise InvalidRequest("text: give it as an argument or on standard input")
    sent = 0
    if args.text is not None:
        sent += deliver(args, calls, os.fsencode(args.text) + b"\n")
    elif not sys.stdin.isatty():
        while data := os.read(sys.stdin.fileno(), PIECE):
            sent += deliver(args, calls, data)
    if args.eof:
        deliver(args, calls, b"", eof=True)
    print_json({"ok": True, "exec_id": args.exec_id, "bytes": sent, "eof": args.eof})
    return 0


def deliver(args: argparse.Namespace, calls: Calls, data: bytes, *, eof: bool = False) -> int:
    """Wait until it is taken, however long the program does not read."""
    request = {**named(args), "append": True, "data": encoded(data), "eof": eof}
    answer = calls.unary("WriteInput", request, timeout_s=WRITE_S)
    while not answer.flag("taken") and not answer.flag("closed"):
        answer = calls.unary("WriteInput", request, timeout_s=WRITE_S)
    if not answer.flag("taken"):
        raise InvalidRequest(f"{args.exec_id}: reads no input (any more)")
    return len(data)


def signal_exec(args: argparse.Namespace, calls: Calls) -> int:
    calls.unary("SignalExec", {**named(args), "signal": args.signal})
    print_json({"ok": True, "exec_id": args.exec_id})
    return 0


def named(args: argparse.Namespace) -> Request:
    session_id = args.session_id or known_session(args)
    if not session_id:
        raise InvalidRequest("session-id: there is no shared session: say which one with --session-id")
    return {"session_id": session_id, "exec_id": args.exec_id}


def known_session(args: argparse.Namespace) -> str:
    return os.environ.get("K8E_SANDBOX_SESSION_ID", "") or shared(args).current() or ""
