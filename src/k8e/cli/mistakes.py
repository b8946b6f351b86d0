"""What a mistyped command line is answered with: the mistake, what was probably meant, and where the help is."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence

from k8e.cli.output import print_json
from k8e.visible import terminal_safe

__all__ = ["explain", "unknown", "worded"]

SHORT = 3
"""A flag of one letter begins too many others."""
LIKENESS = 0.7


def explain(parser: argparse.ArgumentParser, message: str, typed: Sequence[str] = (), *, is_json: bool) -> None:
    """Say it for people on standard error, and for programs that read JSON on standard output."""
    text = f"{worded(message, parser, typed)}; see: {parser.prog} --help"
    if is_json:
        ok = {"ok": False} if parser.get_default("has_ok") else {}
        print_json({"error": "invalid request", "detail": text, **ok})
    if message.endswith("required: command"):
        parser.print_help(sys.stderr)
    else:
        parser.print_usage(sys.stderr)
    if not is_json:
        sys.stderr.write(f"{parser.prog}: {terminal_safe(text)}\n")


def worded(message: str, parser: argparse.ArgumentParser, typed: Sequence[str] = ()) -> str:
    """The parser's message in our words, with what was probably meant where something was mistyped."""
    found = re.fullmatch(r"argument .*: invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if not found:
        return message.replace("the following arguments are required:", "missing:")
    before = typed[: typed.index(found[1])] if found[1] in typed else []
    # The value of a flag that nobody knows stands where a command does.
    if strange := [word for word in before if word.startswith("--") and name_of(word) not in flags_of(parser)]:
        return unknown(strange, parser)
    choices = [choice.strip(" '") for choice in found[2].split(",")]
    near = difflib.get_close_matches(found[1], choices, 1) or in_the_group(found[1], choices)
    return f"{found[1]!r} is not one of {', '.join(choices)}" + (f"; did you mean {near[0]!r}?" if near else "")


def in_the_group(word: str, choices: Sequence[str]) -> list[str]:
    """People leave out the name of the group: `k8e run`."""
    from k8e.cli.grammar import SANDBOX

    near = difflib.get_close_matches(word, SANDBOX, 1, LIKENESS) if "sandbox" in choices else []
    return [f"sandbox {name}" for name in near]


def unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Words that the parser does not know, and the flags that may have been meant."""
    meant = dict.fromkeys(near for word in words if word.startswith("-") for near in nearest(word, flags_of(parser)))
    return f"unknown: {' '.join(words)}" + (f"; did you mean {' '.join(meant)}?" if meant else "")


def nearest(word: str, flags: Sequence[str]) -> list[str]:
    """The flag that a word begins, or that is most like it."""
    name = f"--{name_of(word).lstrip('-')}"
    begun = [flag for flag in flags if flag.startswith(name)] if len(name) > SHORT else []
    return begun[:1] or difflib.get_close_matches(name, flags, 1, LIKENESS)


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for flag in parser._option_string_actions if flag.startswith("--")]  # noqa: SLF001 - argparse has no other way to look


def name_of(word: str) -> str:
    return word.partition("=")[0]
