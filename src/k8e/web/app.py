"""The application: MCP, A2A and a word about health, behind one gate."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from k8e.web.gate import Gate
from k8e.web.guests import Guests
from k8e.web.mcp import McpEndpoint
from k8e.web.mirror import PING_S

__all__ = ["MCP_PATH", "built", "mcp_route"]

MCP_PATH = "/mcp"
REFUSED = -32000


def built(gate: Gate, routes: Sequence[BaseRoute]) -> Starlette:
    async def health(request: Request) -> Response:
        gate.check_provenance(request)
        return JSONResponse({"ok": True})

    handlers = {HTTPException: refused}
    return Starlette(routes=[Route("/healthz", health), *routes], exception_handlers=handlers)  # type: ignore[arg-type]  # its types want less of the error


def mcp_route(gate: Gate, guests: Guests, *, ping_s: float = PING_S) -> BaseRoute:
    return Route(MCP_PATH, McpEndpoint(gate, guests, ping_s=ping_s), methods=["GET", "POST", "DELETE"])


async def refused(request: Request, error: HTTPException) -> Response:
    """As an error of JSON-RPC, which both protocols' clients show to people."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": error.detail}}
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
