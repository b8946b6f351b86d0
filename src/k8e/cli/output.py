"""What commands print and how they end: one JSON line on standard output, and an exit code that means something.

0 done · the command's own code for `run` · 1 bad input or not found · 2 unreachable, not allowed, server error ·
130 interrupted. The key `error` tells our failure from a command's.

Nothing that came from inside a sandbox steers the terminal at which it is printed, whichever command prints it: in JSON what
is not printable is escaped, and a program's own bytes are passed on as they are only to what is no terminal.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from k8e.visible import SUSPECT, TerminalText, terminal_safe

if TYPE_CHECKING:
    import argparse

__all__ = [
    "BAD_INPUT",
    "INTERRUPTED",
    "SERVER",
    "failed",
    "meaning",
    "print_json",
    "print_rows",
    "program_output",
    "say",
]

BAD_INPUT = 1
SERVER = 2
INTERRUPTED = 130
UTF_8 = frozenset({"utf-8", "utf8"})

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
    """One line; text as it is, except where it is not UTF-8 or would steer a terminal."""
    out = file or sys.stdout
    # Where a terminal takes bytes one by one, the bytes of other characters could be controls.
    is_ascii = out.isatty() and out.encoding.lower() not in UTF_8
    out.buffer.write(as_json(value, is_ascii=is_ascii).encode() + b"\n")
    out.buffer.flush()


def as_json(value: Mapping[str, object], *, is_ascii: bool = False) -> str:
    line = json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":"))
    # Outside of its strings JSON is ASCII, so each of these characters is in one, where it may be written as an escape.
    return line if line.isprintable() else SUSPECT.sub(_escaped, line)


def _escaped(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    return "\\u007f" if found[0] == "\x7f" else json.dumps(found[0])[1:-1]


@contextlib.contextmanager
def program_output(file: TextIO) -> Iterator[Callable[[bytes], None]]:
    """What passes a program's bytes on: as they are, or at a terminal as text that cannot steer it."""
    text = TerminalText() if file.isatty() else None

    def pass_on(data: bytes, *, final: bool = False) -> None:
        shown = data if text is None else text.feed(data, final=final).encode(file.encoding, "backslashreplace")
        file.buffer.write(shown)
        file.buffer.flush()

    yield pass_on
    pass_on(b"", final=True)  # the bytes of a character that was never completed


def print_rows(
    args: argparse.Namespace,
    name: str,
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str] = (),
    *,
    is_cut: bool = False,
) -> None:
    """A list: one JSON line, or with `--output table` columns for people; cut, if wanted, at the edge of their terminal."""
    if getattr(args, "output", "json") != "table":
        print_json({name: rows})
        return
    from k8e.cli.table import lines

    table = lines(rows, columns)
    if is_cut and sys.stdout.isatty():
        from k8e.cli.person import pieces, size

        _, width = size(sys.stdout.fileno())
        table = [next(pieces(line, width)) for line in table]
    for line in table:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """One line for a person, on standard error."""
    sys.stderr.write(f"k8e: {terminal_safe(text)}\n")
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
