"""`run`, `poll` and `kill-run`: programs in the foreground and in the background."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from k8e.cli.output import print_json
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest

if TYPE_CHECKING:
    from k8e.cli.groups import Subparsers
    from k8e.client import AsyncSandboxClient, Exit

__all__ = ["add"]

DEFAULT_TIMEOUT_S = 30.0

RUN_EXAMPLES = """examples:
  k8e sandbox run --lang python "print('hello')"
  k8e sandbox run "pip install pandas"            # the next run sees it: same session
  k8e sandbox run --lang python < program.py
  k8e sandbox run --raw "make test"               # output as it happens, exit code of the command
  k8e sandbox run --background "sleep 60; date"   # then: k8e sandbox poll <run_id>
"""


def add(commands: Subparsers) -> None:
    run = commands.add_parser(
        "run",
        help="run a program in the sandbox",
        epilog=RUN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("code", nargs="?", help="the program; without it, standard input")
    run.add_argument("--lang", default="bash", help="python, bash (default), node or ts")
    run.add_argument("--session-id", default="", help="run there instead of in the shared session")
    run.add_argument("--tenant", default="", help="a name under which session and workspace are found again")
    run.add_argument("--timeout", type=float, help="seconds (default 30; none with --background)")
    run.add_argument("--raw", action="store_true", help="no JSON: stdout to stdout, stderr to stderr, as they come")
    run.add_argument("--background", action="store_true", help="start it and print its run_id")
    run.set_defaults(handler=run_program)

    poll = commands.add_parser("poll", help="show a background run and its output so far")
    poll.add_argument("run_id")
    poll.set_defaults(handler=poll_run)

    kill = commands.add_parser("kill-run", help="end a background run and everything it started")
    kill.add_argument("run_id")
    kill.add_argument("--signal", type=int, default=9, help="signal number (default 9)")
    kill.set_defaults(handler=kill_run, has_ok=True)


async def run_program(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    code = program(args)
    if args.background:
        return await in_session(args, client, lambda session_id: start(args, client, session_id, code))
    if args.raw:
        return await in_session(args, client, lambda session_id: stream(args, client, session_id, code))
    return await in_session(args, client, lambda session_id: answer(args, client, session_id, code))


def program(args: argparse.Namespace) -> bytes:
    """The program's exact bytes."""
    if args.code is not None:
        return os.fsencode(args.code)
    if sys.stdin.isatty():
        raise InvalidRequest("code: give the program as an argument or on standard input")
    return sys.stdin.buffer.read()


def timeout(args: argparse.Namespace) -> float:
    if args.timeout is None:
        return 0.0 if args.background else DEFAULT_TIMEOUT_S
    if not args.timeout >= 0:
        raise InvalidRequest("timeout: must be 0 or more seconds")
    return float(args.timeout)


async def answer(args: argparse.Namespace, client: AsyncSandboxClient, session_id: str, code: bytes) -> int:
    result = await client.run(code, args.lang, timeout(args), session_id=session_id)
    shown: dict[str, object] = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
        "session_id": result.session_id,
        "status": result.status,
        "duration_ms": result.duration_ms,
        "truncated": result.truncated,
        "language": result.language,
    }
    more = {"reason": result.reason, "detail": result.detail}
    print_json(shown | {key: value for key, value in more.items() if value})
    return result.exit_code


async def stream(args: argparse.Namespace, client: AsyncSandboxClient, session_id: str, code: bytes) -> int:
    from k8e.client import Chunk

    files = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    async for item in client.run_output(code, args.lang, timeout(args), session_id=session_id):
        if isinstance(item, Chunk):
            files[item.stream].write(item.data)
            files[item.stream].flush()
        else:
            return explained(item)
    raise AssertionError("the server ends every stream with an exit")


def explained(end: Exit) -> int:
    """The exit code, with a word on standard error where the code alone would puzzle."""
    if end.status == "timed_out":
        sys.stderr.write("k8e: the time is over; everything the program started was ended\n")
    elif end.reason:
        sys.stderr.write(f"k8e: {end.reason.replace('_', ' ')}{': ' + end.detail if end.detail else ''}\n")
    return end.exit_code


async def start(args: argparse.Namespace, client: AsyncSandboxClient, session_id: str, code: bytes) -> int:
    run_id = await client.run_background(code, args.lang, timeout(args), session_id=session_id)
    print_json({"run_id": run_id, "status": "started", "session_id": session_id})
    return 0


async def poll_run(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    run = await client.poll_run(args.run_id)
    shown: dict[str, object] = {
        "run_id": run.run_id,
        "status": run.status,
        "stdout": run.stdout,
        "stderr": run.stderr,
        "exit_code": run.exit_code,
        "duration_ms": run.duration_ms,
        "truncated": run.truncated,
    }
    print_json(shown | ({"reason": run.reason} if run.reason else {}))
    return 0


async def kill_run(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    await client.kill_run(args.run_id, args.signal)
    print_json({"ok": True, "run_id": args.run_id})
    return 0
