"""`write`, `read` and `list`: files of a session, byte for byte."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from k8e.cli.output import print_json

if TYPE_CHECKING:
    from k8e.cli.groups import Subparsers
    from k8e.client import AsyncSandboxClient

__all__ = ["add"]

PIECE = 256 * 1024

WRITE_EXAMPLES = """examples:
  k8e sandbox write $SID /workspace/main.py < main.py
  echo more | k8e sandbox write $SID log.txt --mode a
"""


def add(commands: Subparsers) -> None:
    write = commands.add_parser(
        "write",
        help="write standard input to a file",
        epilog=WRITE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    write.add_argument("session_id")
    write.add_argument("path", help="relative paths are below /workspace")
    write.add_argument("--mode", choices=["w", "a"], default="w", help="write (default) or append")
    write.set_defaults(handler=write_file, has_ok=True)

    read = commands.add_parser("read", help="print a file")
    read.add_argument("session_id")
    read.add_argument("path")
    read.add_argument("--raw", action="store_true", help="no JSON: the file's exact bytes")
    read.set_defaults(handler=read_file)

    listing = commands.add_parser("list", help="list the files below /workspace")
    listing.add_argument("session_id")
    listing.add_argument("--since", type=int, default=0, metavar="UNIX_SECONDS", help="only those changed since")
    listing.set_defaults(handler=list_files)


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
