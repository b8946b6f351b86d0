"""From a parsed command to its exit code: reach the server, do the call, say what went wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from k8e.cli.output import BAD_INPUT, INTERRUPTED, failed
from k8e.cli.patience import Patient
from k8e.cli.reaching import reach
from k8e.client.errors import InvalidRequest, SandboxError
from k8e.client.light.calls import Calls

__all__ = ["Handler", "call"]

Handler = Callable[[argparse.Namespace, Calls], int]


def call(handler: Handler, args: argparse.Namespace, environ: Mapping[str, str], *, starts_server: bool) -> int:
    """Run one command against the server."""
    how = {"has_ok": getattr(args, "has_ok", False), "is_raw": getattr(args, "raw", False)}
    try:
        calls = Patient(reach(args, environ, starts_server=starts_server))
        try:
            return handler(args, calls)
        finally:
            # Also after an interrupt: the server then ends what the call started.
            calls.close()
    except SandboxError as error:
        return failed(error, **how)
    except BrokenPipeError:
        return BAD_INPUT
    except OSError as error:
        return failed(InvalidRequest(str(error)), **how)
    except KeyboardInterrupt:
        return INTERRUPTED
