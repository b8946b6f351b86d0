"""`k8e secret …` and the flags that refer to secrets. A value comes from standard input, a file or a hidden prompt.

Never from an argument: the host's process list shows those to everybody.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import getpass
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from k8e.cli.output import print_json
from k8e.client.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from k8e.client import AsyncSandboxClient, BrokeredSecret, SecretRef

__all__ = ["brokered", "delete_secret", "list_secrets", "reference", "set_secret"]

_REFERENCE = re.compile(r"(?P<env>[^=]+)=(?P<name>[^:@/]+)(:(?P<key>[^:@/]+))?")
_BROKERED = re.compile(_REFERENCE.pattern + r"@(?P<host>[^/@]+)(/(?P<header>[^/@]+))?")


async def set_secret(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    name, _, key = args.name.partition(":")
    await client.set_secret(name, await asyncio.to_thread(value, args), key or "value")
    print_json({"ok": True, "name": name, "key": key or "value"})
    return 0


def value(args: argparse.Namespace) -> bytes:
    """A file's exact bytes; else standard input, without the newline that `echo` adds; else what is typed, unseen."""
    if args.from_file:
        return Path(args.from_file).read_bytes()
    if sys.stdin.isatty():
        return getpass.getpass(f"value of {args.name}: ").encode("utf-8", "surrogateescape")
    return sys.stdin.buffer.read().removesuffix(b"\n")


async def list_secrets(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    print_json({"secrets": [dataclasses.asdict(each) for each in await client.secrets()]})
    return 0


async def delete_secret(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    name, _, key = args.name.partition(":")
    if not await client.delete_secret(name, key):
        raise NotFound(f"secret {args.name} not found")
    print_json({"ok": True, "name": name, **({"key": key} if key else {})})
    return 0


def reference(text: str) -> SecretRef:
    """`ENV=name[:key]`"""
    from k8e.client.values import SecretRef

    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"secret: {text!r} is not ENV=name:key")
    return SecretRef(env_var=found["env"], secret_name=found["name"], key=found["key"] or "value")


def brokered(text: str) -> BrokeredSecret:
    """`ENV=name[:key]@host[/header]`"""
    from k8e.client.values import BrokeredSecret

    found = _BROKERED.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"broker: {text!r} is not ENV=name:key@host or ENV=name:key@host/header")
    return BrokeredSecret(
        env_var=found["env"],
        secret_name=found["name"],
        key=found["key"] or "value",
        host=found["host"],
        header=found["header"] or "authorization",
    )
