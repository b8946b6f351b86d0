"""Flags of commands about files."""

from __future__ import annotations

from k8e.cli.grammar import Parser, add_output

__all__ = ["fill_cp", "fill_list", "fill_read", "fill_write"]


def fill_write(write: Parser) -> None:
    write.add_argument("session_id")
    write.add_argument("path", help="relative paths are below /workspace")
    write.add_argument("--mode", choices=["w", "a"], default="w", help="write (default) or append")
    write.set_defaults(handler="files:write_file", has_ok=True)


def fill_read(read: Parser) -> None:
    read.add_argument("session_id")
    read.add_argument("path", help="relative paths are below /workspace")
    read.add_argument(
        "--raw",
        action="store_true",
        help="no JSON: the file's exact bytes, also binary ones (at a terminal without what would steer it)",
    )
    read.set_defaults(handler="files:read_file")


def fill_list(listing: Parser) -> None:
    listing.add_argument("session_id")
    listing.add_argument("--since", type=int, default=0, metavar="UNIX_SECONDS", help="only those changed since")
    add_output(listing)
    listing.set_defaults(handler="files:list_files")


def fill_cp(copy: Parser) -> None:
    copy.add_argument("source", help="a file or a directory: here, or SESSION:PATH")
    copy.add_argument("target", help="where to: SESSION:PATH, or here")
    copy.set_defaults(handler="copying:copy")
