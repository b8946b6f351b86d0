"""Flags of `k8e audit`."""

from __future__ import annotations

from k8e.cli.grammar import Parser

__all__ = ["fill_audit"]


def fill_audit(audit: Parser) -> None:
    actions = audit.add_subparsers(metavar="verify|show", required=True, parser_class=Parser)
    verify = actions.add_parser("verify", help="check that no record was altered, removed or added; exit 1 if one was")
    verify.add_argument("--json", action="store_true", help="one JSON line instead of text")
    verify.set_defaults(local="audit:check")
    show = actions.add_parser("show", help="print the newest records, one JSON line each")
    show.add_argument("--limit", type=int, default=50, metavar="N", help="so many (default 50, 0 all)")
    show.add_argument("--session-id", default="", help="only those about this session")
    show.set_defaults(local="audit:show")
    for action in (verify, show):
        action.add_argument("--data-dir", help="the server's; default: /var/lib/k8e as root, else ~/.local/share/k8e")
