"""The entry point of `k8e`, `k8e-sandbox` and `k8e-sandbox-cli`.

What is imported before a command is known costs every start, so it is little: see `grammar`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from k8e import __version__

TYPE_CHECKING = False  # the module `typing` costs 2 ms
if TYPE_CHECKING:
    import argparse
    from typing import Any, NoReturn

__all__ = ["loaded", "main"]

INTERRUPTED = 130
COLLECT_AFTER = 50_000


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run one command and return its exit code."""
    fill_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    started_as = sys.argv[0] if prog is None else prog
    name = os.path.basename(started_as)  # noqa: PTH119 - pathlib costs 7 ms
    name = name if name.startswith("k8e-sandbox") else "k8e"
    if words == ["--version"]:
        print(f"{name} {__version__}")
        return 0
    try:
        args = parsed(words, name)
        args.started_as = started_as
        code = run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    if argv is None and not hasattr(args, "local"):
        leave(code)
    return code


def parsed(words: list[str], name: str) -> argparse.Namespace:
    from k8e.cli.grammar import full_parser, sandbox_parser, without_group

    if name == "k8e":
        return full_parser(words).parse_args(words)
    words = without_group(words)
    return sandbox_parser(name, words).parse_args(words)


def run(args: argparse.Namespace) -> int:
    if hasattr(args, "local"):
        from k8e.cli.calling import guarded

        return guarded(lambda: int(loaded(args.local)(args)), args)
    # Most commands live for milliseconds and take what they leave with them; long ones still collect, only later.
    gc.set_threshold(COLLECT_AFTER)
    from k8e.cli.calling import call

    return call(loaded(args.handler), args, os.environ, starts_server=getattr(args, "starts_server", True))


def fill_streams() -> None:
    """Put nothing in place of standard streams that were closed, before a socket takes their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - it stays open, and pathlib costs 7 ms


def leave(code: int) -> NoReturn:
    """End the process at once: every call is over, and taking the interpreter apart costs as much as a call."""
    import contextlib

    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may have gone.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def loaded(name: str) -> Callable[..., Any]:
    """The function that the grammar names as `module:function`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"k8e.cli.{module}"), function)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
