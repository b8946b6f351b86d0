"""`k8e secret …` and the flags that refer to secrets. A value comes from standard input, a file or a hidden prompt.

Never from an argument: the host's process list shows those to everybody.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from k8e.cli import shapes
from k8e.cli.output import print_json, print_rows
from k8e.client.errors import InvalidRequest, NotFound
from k8e.client.light.calls import Calls, encoded

__all__ = ["brokered", "delete_secret", "list_secrets", "reference", "set_secret"]

_REFERENCE = re.compile(r"(?P<env>[^=]+)=(?P<name>[^:@/]+)(:(?P<key>[^:@/]+))?")
_BROKERED = re.compile(_REFERENCE.pattern + r"@(?P<host>[^/@]+)(/(?P<header>[^/@]+))?")


def set_secret(args: argparse.Namespace, calls: Calls) -> int:
    name, _, key = args.name.partition(":")
    calls.unary("SetSecret", {"name": name, "key": key or "value", "value": encoded(value(args))})
    print_json({"ok": True, "name": name, "key": key or "value"})
    return 0


def value(args: argparse.Namespace) -> bytes:
    """A file's exact bytes; else standard input, without the newline that `echo` adds; else what is typed, unseen."""
    if args.from_file:
        return Path(args.from_file).read_bytes()
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"value of {args.name}: ").encode("utf-8", "surrogateescape")
    return sys.stdin.buffer.read().removesuffix(b"\n")


def list_secrets(args: argparse.Namespace, calls: Calls) -> int:
    rows: list[dict[str, object]] = [
        {
            "name": each.text("name"),
            "keys": each.texts("keys"),
            "updated_at": each.number("updated_at"),
            **shapes.owner(args, each),
        }
        for each in calls.unary("ListSecrets", shapes.everybodys(args)).each("secrets")
    ]
    print_rows(args, "secrets", rows)
    return 0


def delete_secret(args: argparse.Namespace, calls: Calls) -> int:
    name, _, key = args.name.partition(":")
    if not calls.unary("DeleteSecret", {"name": name, "key": key}).flag("ok"):
        raise NotFound(f"secret {args.name} not found")
    print_json({"ok": True, "name": name, **({"key": key} if key else {})})
    return 0


def reference(text: str) -> dict[str, str]:
    """`ENV=name[:key]`"""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"secret: {text!r} is not ENV=name:key")
    return {"env_var": found["env"], "secret_name": found["name"], "key": found["key"] or "value"}


def brokered(text: str) -> dict[str, str]:
    """`ENV=name[:key]@host[/header]`"""
    found = _BROKERED.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"broker: {text!r} is not ENV=name:key@host or ENV=name:key@host/header")
    return {
        "env_var": found["env"],
        "secret_name": found["name"],
        "key": found["key"] or "value",
        "host": found["host"],
        "header": found["header"] or "authorization",
    }
