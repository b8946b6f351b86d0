"""Flags of the command that serves other agents."""

from __future__ import annotations

from k8e.cli.flags.mcp import fill_admission, fill_tls
from k8e.cli.grammar import Parser, add_connection

__all__ = ["fill_a2a"]

DEFAULT_ADDRESS = "127.0.0.1:8822"


def fill_a2a(a2a: Parser) -> None:
    add_connection(a2a)
    fill_tls(a2a)
    a2a.add_argument(
        "--addr",
        "--http-addr",
        dest="http_addr",
        default=DEFAULT_ADDRESS,
        metavar="ADDR",
        help=f"host:port to listen on (default {DEFAULT_ADDRESS})",
    )
    a2a.add_argument("--public-url", default="", metavar="URL", help="what the card says when a proxy stands before us")
    fill_admission(a2a)
    a2a.set_defaults(local="a2a:serve", grace=None, tenant_id=None)
