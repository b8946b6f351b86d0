"""`run`, `poll` and `kill-run`: programs in the foreground and in the background."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from k8e.cli.network import denied, split
from k8e.cli.output import print_json
from k8e.cli.sharing import in_session
from k8e.client.errors import InvalidRequest

if TYPE_CHECKING:
    from k8e.client import AsyncSandboxClient, Exit

__all__ = ["kill_run", "poll_run", "run_program"]

DEFAULT_TIMEOUT_S = 30.0


async def run_program(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    code = program(args)
    way = start if args.background else stream if args.raw else answer

    async def work(session_id: str) -> int:
        if args.allowed_hosts is not None:
            await client.update_allowed_hosts(session_id, split([args.allowed_hosts]))
        return await way(args, client, session_id, code)

    return await in_session(args, client, work)


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
    print_json(shown | {key: value for key, value in more.items() if value} | denied(result.egress_denied))
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
    for each in end.egress_denied:
        sys.stderr.write(f"k8e: could not reach {each.host}{f':{each.port}' if each.port else ''}: {each.reason}\n")
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
    print_json(shown | ({"reason": run.reason} if run.reason else {}) | denied(run.egress_denied))
    return 0


async def kill_run(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    await client.kill_run(args.run_id, args.signal)
    print_json({"ok": True, "run_id": args.run_id})
    return 0
