"""What a mistyped command line is answered with: the mistake, what was probably meant, and where the help is."""

from __future__ import annotations

import argparse
import difflib
import re
import sys

from k8e.cli.output import print_json
from k8e.visible import terminal_safe

__all__ = ["explain", "worded"]


def explain(parser: argparse.ArgumentParser, message: str, *, is_json: bool) -> None:
    """Say it for people on standard error, and for programs that read JSON on standard output."""
    text = f"{worded(message)}; see: {parser.prog} --help"
    if is_json:
        ok = {"ok": False} if parser.get_default("has_ok") else {}
        print_json({"error": "invalid request", "detail": text, **ok})
    if message.endswith("required: command"):
        parser.print_help(sys.stderr)
    else:
        parser.print_usage(sys.stderr)
    if not is_json:
        sys.stderr.write(f"{parser.prog}: {terminal_safe(text)}\n")


def worded(message: str) -> str:
    """The parser's message in our words, with the nearest command where one was mistyped."""
    found = re.fullmatch(r"argument .*: invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if not found:
        return message.replace("the following arguments are required:", "missing:")
    choices = [choice.strip(" '") for choice in found[2].split(",")]
    near = difflib.get_close_matches(found[1], choices, 1)
    return f"{found[1]!r} is not one of {', '.join(choices)}" + (f"; did you mean {near[0]!r}?" if near else "")
