"""`a2a`: an agent of the Agent2Agent protocol that runs code for other agents. It is the HTTP door without MCP."""

from __future__ import annotations

import argparse
import os
from urllib.parse import urlsplit

from k8e.cli.mcp import environment
from k8e.cli.mcp_http import serve_http
from k8e.cli.output import INTERRUPTED, failed
from k8e.client.errors import InvalidRequest, SandboxError

__all__ = ["serve"]


def serve(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    try:
        if args.public_url:
            # A proxy passes on the name that it was called by.
            args.allow_host.append(public_host(args.public_url))
        return serve_http(args, environment(args, os.environ), has_mcp=False, public_url=args.public_url)
    except SandboxError as error:
        return failed(error, is_raw=True)
    except KeyboardInterrupt:
        return INTERRUPTED


def public_host(url: str) -> str:
    """The name in an address that is good for a card. Raises: InvalidRequest."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or parts.username or parts.query or parts.fragment:
        raise InvalidRequest(f"public-url: {url!r} must be like https://agents.example or https://example.com/k8e")
    return host
