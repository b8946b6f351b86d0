"""The entry point of `k8e`, `k8e-sandbox` and `k8e-sandbox-cli`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from k8e.cli.groups import full_parser, sandbox_parser

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = Path(sys.argv[0] if prog is None else prog).name
    if name.startswith("k8e-sandbox"):
        # Some of its users type the group's name again.
        words = words[1:] if words[:1] == ["sandbox"] else words
        args = sandbox_parser(name).parse_args(words)
    else:
        args = full_parser(words[0] if words else "").parse_args(words)
    if hasattr(args, "local"):
        return int(args.local(args))
    from k8e.cli.calling import call

    return call(args.handler, args, os.environ, starts_server=getattr(args, "starts_server", True))


if __name__ == "__main__":
    raise SystemExit(main())
