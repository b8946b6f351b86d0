"""`catalog`: the tree of commands as data, read off the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from k8e.cli.grammar import full_parser, sandbox_parser
from k8e.cli.output import print_json

__all__ = ["Node", "show", "tree"]


class Node(NamedTuple):
    """A command or a group of them."""

    name: str
    text: str
    flags: tuple[tuple[str, str, bool], ...]
    """Each with its text, and whether a value follows it."""
    arguments: tuple[str, ...]
    children: tuple[Node, ...]


def tree(prog: str = "k8e") -> Node:
    """Every command with its flags."""
    parser = full_parser(None) if prog == "k8e" else sandbox_parser(prog, None)
    return node(parser, prog, parser.description or "")


def node(parser: argparse.ArgumentParser, name: str, text: str) -> Node:
    options = [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse has no other way to look
    flags = tuple(
        (flag, action.help or "", action.nargs != 0)
        for action in options
        if action.help != argparse.SUPPRESS
        for flag in action.option_strings
        if flag.startswith("--")
    )
    arguments = tuple(
        action.dest
        for action in parser._actions  # noqa: SLF001
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    )
    return Node(name, text, flags, arguments, tuple(children(parser)))


def children(parser: argparse.ArgumentParser) -> Iterator[Node]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            texts = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
            for name, child in action.choices.items():
                yield node(child, name, texts.get(name, ""))


def show(args: argparse.Namespace) -> int:
    root = tree("k8e-sandbox")
    print_json({"catalog_version": 1, "commands": [shown(each) for each in leaves(root, "")]})
    return 0


def leaves(root: Node, before: str) -> Iterator[Node]:
    for child in root.children:
        name = f"{before} {child.name}".strip()
        if child.children:
            yield from leaves(child, name)
        else:
            yield child._replace(name=name)


def shown(command: Node) -> dict[str, object]:
    usage = " ".join([command.name, *(f"<{argument}>" for argument in command.arguments)])
    return {
        "name": command.name,
        "usage": usage,
        "text": command.text,
        "flags": [{"name": flag, "usage": text} for flag, text, _ in command.flags if flag != "--help"],
    }
