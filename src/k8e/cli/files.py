"""`write`, `read` and `list`: files of a session, byte for byte."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Iterable, Iterator

from k8e.cli import shapes
from k8e.cli.output import print_json, print_rows, program_output
from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import Calls, Request, encoded, listed, only

__all__ = ["list_files", "read_file", "write_file"]

PIECE = 256 * 1024
NUL = b"\0"


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
    pieces = (chunk.data("data") for chunk in chunks)
    if not args.raw:
        print_json({"content": b"".join(text_only(pieces, args.path)).decode(), "path": args.path})
        return 0
    with program_output(sys.stdout) as pass_on:
        for piece in pieces:
            if sys.stdout.isatty() and NUL in piece:
                raise InvalidRequest(f"{args.path}: is binary, nothing for a terminal; send it to a file: --raw > FILE")
            pass_on(piece)
    return 0


def text_only(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The pieces of a text file. Raises: InvalidRequest as soon as they show that it is none."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    binary = InvalidRequest(
        f"{path}: is binary (not UTF-8, or with NUL bytes), which JSON text cannot hold; "
        "its exact bytes: k8e sandbox read --raw SESSION PATH > FILE"
    )
    try:
        for piece in pieces:
            decoder.decode(piece)
            if NUL in piece:
                raise binary
            yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise binary from error


def list_files(args: argparse.Namespace, calls: Calls) -> int:
    found = listed(calls, "ListFiles", {"session_id": args.session_id, "since": args.since}, "files")
    print_rows(args, "files", [shapes.file(each) for each in found])
    return 0
