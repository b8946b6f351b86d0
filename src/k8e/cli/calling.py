"""From a parsed command to its exit code: do it, with the server if it needs one, and say what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from k8e.cli.output import BAD_INPUT, INTERRUPTED, failed
from k8e.cli.patience import Patient
from k8e.cli.reaching import reach
from k8e.cli.reconnecting import Reconnecting
from k8e.client.errors import InvalidRequest, SandboxError
from k8e.client.light.calls import Calls

__all__ = ["Handler", "call", "guarded"]

Handler = Callable[[argparse.Namespace, Calls], int]


def call(handler: Handler, args: argparse.Namespace, environ: Mapping[str, str], *, starts_server: bool) -> int:
    """Run one command against the server."""

    def reach_again() -> Calls:
        return reach(args, environ, starts_server=starts_server, was_lost=True)

    def work() -> int:
        calls = Patient(Reconnecting(reach(args, environ, starts_server=starts_server), reach_again))
        try:
            return handler(args, calls)
        finally:
            # Also after an interrupt: the server then ends what the call started.
            calls.close()

    return guarded(work, args)


def guarded(work: Callable[[], int], args: argparse.Namespace) -> int:
    """Do a command's work; every failure that people meet is an exit code and a line."""
    how = {"has_ok": getattr(args, "has_ok", False), "is_raw": getattr(args, "raw", False)}
    try:
        code = work()
        # Here, where it is no surprise that nobody reads it any more.
        sys.stdout.flush()
    except SandboxError as error:
        return failed(error, **how)
    except BrokenPipeError:
        # What is still held for a reader that has gone must not be an error once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_INPUT
    except OSError as error:
        return failed(InvalidRequest(str(error)), **how)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
