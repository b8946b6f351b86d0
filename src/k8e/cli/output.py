"""What commands print and how they end: one JSON line on standard output, and an exit code that means something.

0 done · the command's own code for `run` · 1 bad input or not found · 2 unreachable, not allowed, server error ·
130 interrupted. The key `error` tells our failure from a command's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from k8e.client.errors import (
    Conflict,
    DeadlineExceeded,
    Denied,
    Exhausted,
    InvalidRequest,
    NotFound,
    SandboxError,
    SandboxLost,
    ServerFailed,
    Unauthenticated,
    Unreachable,
    Unsupported,
)

if TYPE_CHECKING:
    import argparse

__all__ = ["BAD_INPUT", "INTERRUPTED", "SERVER", "failed", "meaning", "print_json", "print_rows", "say"]

BAD_INPUT = 1
SERVER = 2
INTERRUPTED = 130

WORDS: dict[type[SandboxError], tuple[str, int]] = {
    InvalidRequest: ("invalid request", BAD_INPUT),
    NotFound: ("not found", BAD_INPUT),
    Conflict: ("conflict", BAD_INPUT),
    Unauthenticated: ("unauthenticated", SERVER),
    Denied: ("not allowed", SERVER),
    Exhausted: ("limit reached", SERVER),
    Unsupported: ("not supported", SERVER),
    SandboxLost: ("sandbox lost", SERVER),
    Unreachable: ("service unreachable", SERVER),
    DeadlineExceeded: ("no answer in time", SERVER),
    ServerFailed: ("server error", SERVER),
    SandboxError: ("error", SERVER),
}


def print_json(value: Mapping[str, object], file: TextIO | None = None) -> None:
    """One line; text as it is, except where it is not UTF-8."""
    out = (file or sys.stdout).buffer
    try:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        line = json.dumps(value, separators=(",", ":")).encode()
    out.write(line + b"\n")
    out.flush()


def print_rows(
    args: argparse.Namespace, name: str, rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()
) -> None:
    """A list: one JSON line, or with `--output table` columns for people."""
    if getattr(args, "output", "json") != "table":
        print_json({name: rows})
        return
    from k8e.cli.table import lines

    for line in lines(rows, columns):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """One line for a person, on standard error."""
    sys.stderr.write(f"k8e: {text}\n")
    sys.stderr.flush()


def meaning(error: SandboxError) -> tuple[str, int]:
    """The word for it in JSON, and its exit code."""
    return next(WORDS[kind] for kind in type(error).__mro__ if kind in WORDS)


def failed(error: SandboxError, *, has_ok: bool = False, is_raw: bool = False) -> int:
    """Print our own failure and return its exit code. Raw output is the program's or the file's and stays clean."""
    word, code = meaning(error)
    print_json(
        {"error": word, "detail": str(error), **({"ok": False} if has_ok else {})}, sys.stderr if is_raw else None
    )
    return code
