"""Flags of the command that agents start."""

from __future__ import annotations

from k8e.cli.grammar import Parser, add_connection

__all__ = ["fill_admission", "fill_mcp", "fill_tls"]


def fill_mcp(mcp: Parser) -> None:
    add_connection(mcp)
    fill_tls(mcp)
    mcp.add_argument("--tenant-id", metavar="NAME", help="work in this tenant's session, which stays")
    mcp.add_argument("--http", action="store_true", help="serve over HTTP instead of standard input and output")
    mcp.add_argument("--http-addr", metavar="ADDR", help="host:port to listen on (default 127.0.0.1:8811)")
    fill_admission(mcp)
    mcp.add_argument(
        "--grace", type=float, metavar="S", help="seconds after which an absent client's sandboxes end (default 60)"
    )
    mcp.set_defaults(local="mcp:serve")


def fill_tls(command: Parser) -> None:
    """How the server knows us."""
    command.add_argument("--tls-cert", metavar="FILE", help="the CA to trust, or with --tls-key our own certificate")
    command.add_argument("--tls-key", metavar="FILE", help="the key of our own certificate")


def fill_admission(command: Parser) -> None:
    """Whom an HTTP door lets in."""
    command.add_argument("--require-key", action="store_true", help="let nobody in without an API key")
    command.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name of this machine in requests"
    )
    command.add_argument("--allow-origin", action="append", default=[], metavar="URL", help="a web page that may call")
