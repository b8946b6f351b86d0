"""`run`, `poll` and `kill-run`: programs in the foreground and in the background."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from k8e.cli import shapes
from k8e.cli.network import split, update
from k8e.cli.output import print_json, program_output, say
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest, ServerFailed
from k8e.client.light.calls import Answer, Calls, Request, deadline, encoded, new_exec_id

if TYPE_CHECKING:
    from k8e.cli.entries import Entry
    from k8e.cli.standard_input import StandardInput

__all__ = ["kill_run", "poll_run", "run_program"]

DEFAULT_TIMEOUT_S = 30.0
CODE_BYTES = 32 * 1024 * 1024
"""No server takes a longer program."""
OUT_OF_TIME = (
    "the time is over, and everything the program started was ended; "
    "give it more with --timeout SECONDS, or start it with --background"
)
STDERR = {"OUTPUT_CHANNEL_STDERR", "2"}


def run_program(args: argparse.Namespace, calls: Calls) -> int:
    code = program(args)
    wanted = entries(args)
    given = standard_input(args, calls)
    if args.no_input and args.code in {None, "-"}:
        raise InvalidRequest("-n: the program itself is to come from standard input; give it as an argument")
    if args.input and (args.no_input or not args.background):
        raise InvalidRequest("-i: is for --background; in the foreground a program reads standard input without it")

    def work(session_id: str) -> int:
        if args.allowed_hosts is not None:
            update(calls, session_id, hosts=split([args.allowed_hosts]))
        if wanted:
            from k8e.cli.entries import materialize

            materialize(calls, session_id, wanted)
        asked = request(args, session_id, code)
        if args.background:
            return start(args, calls, asked)
        exec_id = new_exec_id()
        if given is not None:
            given.pass_on(session_id, exec_id)
        way = stream if args.raw else answer
        return way(args, calls, {**asked, "exec_id": exec_id, "with_stdin": given is not None})

    return in_session(args, calls, work)


def entries(args: argparse.Namespace) -> list[Entry]:
    """What `--manifest` and `--git-repo` ask for, checked before anything is made."""
    if not (args.manifest or args.git_repo):
        return []
    from k8e.cli.entries import wanted

    return wanted(args)


def program(args: argparse.Namespace) -> bytes:
    """The program's exact bytes."""
    if args.code not in {None, "-"}:
        return os.fsencode(args.code)
    if sys.stdin.isatty():
        raise InvalidRequest("code: give the program as an argument or on standard input")
    code = sys.stdin.buffer.read(CODE_BYTES + 1)
    if len(code) > CODE_BYTES:
        raise InvalidRequest(
            f"code: is longer than {CODE_BYTES} bytes; first write it to a file (`k8e sandbox write SESSION PATH`), "
            "then run that"
        )
    return code


def timeout(args: argparse.Namespace) -> float:
    if args.timeout is None:
        return 0.0 if args.background else DEFAULT_TIMEOUT_S
    if args.timeout < 0:
        raise InvalidRequest("timeout: must be 0 or more seconds")
    return float(args.timeout)


def request(args: argparse.Namespace, session_id: str, code: bytes) -> Request:
    return {"session_id": session_id, "code": encoded(code), "language": args.lang, "timeout_s": timeout(args)}


def answer(args: argparse.Namespace, calls: Calls, asked: Request) -> int:
    result = calls.unary("Exec", asked, timeout_s=deadline(timeout(args)))
    shown: dict[str, object] = {
        **shapes.run(result),
        "session_id": result.text("session_id"),
        "status": result.text("status"),
        "duration_ms": result.number("duration_ms"),
        "truncated": result.flag("truncated"),
        "language": result.text("language"),
    }
    is_late = result.text("status") == "timed_out"
    more = {"reason": result.text("reason"), "detail": OUT_OF_TIME if is_late else result.text("detail")}
    print_json(shown | {key: value for key, value in more.items() if value} | shapes.denials(result))
    return result.number("exit_code")


def stream(args: argparse.Namespace, calls: Calls, asked: Request) -> int:
    with program_output(sys.stdout) as out, program_output(sys.stderr) as err:
        begin = {"start": asked, "exec_id": asked["exec_id"]}
        for item in calls.stream("ExecAttach", [begin], timeout_s=deadline(timeout(args))):
            if item.has("chunk"):
                chunk = item.one("chunk")
                (err if chunk.text("channel") in STDERR else out)(chunk.data("data"))
            elif item.has("exit"):
                return explained(item.one("exit"))
    raise ServerFailed("the server ended the stream without an exit code")


def standard_input(args: argparse.Namespace, calls: Calls) -> StandardInput | None:
    """For the program, unless that itself comes from there, nobody wants it to, or it is a terminal's."""
    if args.no_input or args.background or args.code in {None, "-"}:
        return None
    from k8e.cli.standard_input import StandardInput, has_input

    return StandardInput(calls) if has_input() else None


def explained(end: Answer) -> int:
    """The exit code, with a word on standard error where the code alone would puzzle."""
    reason, detail = end.text("reason"), end.text("detail")
    if end.text("status") == "timed_out":
        say(OUT_OF_TIME)
    elif reason:
        say(f"{reason.replace('_', ' ')}{': ' + detail if detail else ''}")
    for each in end.each("egress_denied"):
        port = each.number("port")
        say(f"could not reach {each.text('host')}{f':{port}' if port else ''}: {each.text('reason')}")
    return end.number("exit_code")


def start(args: argparse.Namespace, calls: Calls, asked: Request) -> int:
    begun = calls.unary("Exec", {**asked, "background": True, "with_stdin": args.input})
    print_json({"run_id": begun.text("run_id"), "status": "started", "session_id": asked["session_id"]})
    return 0


def poll_run(args: argparse.Namespace, calls: Calls) -> int:
    run = calls.unary("PollRun", {"run_id": args.run_id})
    shown: dict[str, object] = {
        "run_id": run.text("run_id"),
        "status": run.text("status"),
        **shapes.run(run),
        "duration_ms": run.number("duration_ms"),
        "truncated": run.flag("truncated"),
    }
    reason = run.text("reason")
    print_json(shown | ({"reason": reason} if reason else {}) | shapes.denials(run))
    return 0


def kill_run(args: argparse.Namespace, calls: Calls) -> int:
    calls.unary("KillRun", {"run_id": args.run_id, "signal": args.signal})
    print_json({"ok": True, "run_id": args.run_id})
    return 0
