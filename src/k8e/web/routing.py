"""Which form of MCP over HTTP a request speaks, told by its method and headers. Pure.

- The sessions of revisions 2025-03-26 to 2025-11-25: a POST that takes streams opens one; its id is a header from then on.
- The revision without sessions (2026-07-28 and later): named in a header of every request.
- The older form of k8e: a GET without a session opens a stream whose first event is a token; a POST with that token, or
  without any, is answered in its body.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

__all__ = ["SESSION_HEADER", "Form", "form_of"]

SESSION_HEADER = "mcp-session-id"
VERSION_HEADER = "mcp-protocol-version"


class Form(Enum):
    MODERN = "no sessions"
    KNOWN = "a session or token that was given out before"
    OPENING = "opens a session"
    STREAM = "opens a stream of the older form"
    PLAIN = "one question in the older form"
    NONE = "nothing that is served"


def form_of(method: str, headers: Mapping[str, str]) -> Form:
    version = headers.get(VERSION_HEADER)
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return Form.MODERN
    if SESSION_HEADER in headers:
        return Form.KNOWN
    match method:
        case "GET":
            return Form.STREAM
        case "POST":
            return Form.OPENING if "text/event-stream" in headers.get("accept", "").lower() else Form.PLAIN
        case _:
            return Form.NONE
