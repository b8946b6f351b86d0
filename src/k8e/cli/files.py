"""`write`, `read` and `list`: files of a session, byte for byte."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from k8e.cli import shapes
from k8e.cli.output import print_json, print_rows, program_output
from k8e.client.light.calls import Calls, Request, encoded, listed, only

__all__ = ["list_files", "read_file", "write_file"]

PIECE = 256 * 1024


def write_file(args: argparse.Namespace, calls: Calls) -> int:
    opened = {"session_id": args.session_id, "path_bytes": encoded(args.path), "append": args.mode == "a"}

    def requests() -> Iterator[Request]:
        yield {"open": opened}
        while piece := sys.stdin.buffer.read(PIECE):
            yield {"data": encoded(piece)}

    only(calls.stream("WriteStream", requests()))
    print_json({"ok": True, "path": args.path})
    return 0


def read_file(args: argparse.Namespace, calls: Calls) -> int:
    chunks = calls.stream("ReadStream", [{"session_id": args.session_id, "path_bytes": encoded(args.path)}])
    if not args.raw:
        content = b"".join(chunk.data("data") for chunk in chunks).decode("utf-8", "replace")
        print_json({"content": content, "path": args.path})
        return 0
    with program_output(sys.stdout) as pass_on:
        for chunk in chunks:
            pass_on(chunk.data("data"))
    return 0


def list_files(args: argparse.Namespace, calls: Calls) -> int:
    found = listed(calls, "ListFiles", {"session_id": args.session_id, "since": args.since}, "files")
    print_rows(args, "files", [shapes.file(each) for each in found])
    return 0
