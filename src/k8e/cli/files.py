"""`write`, `read` and `list`: files of a session, byte for byte."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from k8e.cli.output import print_json

if TYPE_CHECKING:
    from k8e.client import AsyncSandboxClient

__all__ = ["list_files", "read_file", "write_file"]

PIECE = 256 * 1024


async def write_file(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    await client.write_file(args.session_id, args.path, standard_input(), args.mode)
    print_json({"ok": True, "path": args.path})
    return 0


async def standard_input() -> AsyncIterator[bytes]:
    while piece := sys.stdin.buffer.read(PIECE):
        yield piece


async def read_file(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    if not args.raw:
        content = (await client.read_bytes(args.session_id, args.path)).decode("utf-8", "replace")
        print_json({"content": content, "path": args.path})
        return 0
    async for chunk in client.read_chunks(args.session_id, args.path):
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
    return 0


async def list_files(args: argparse.Namespace, client: AsyncSandboxClient) -> int:
    found = await client.list_files(args.session_id, args.since)
    listed = [{"path": e.path, "modified": int(e.modified), "type": e.type, "size": e.size} for e in found]
    print_json({"files": listed})
    return 0
