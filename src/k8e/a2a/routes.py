"""The agent's routes for whoever serves HTTP: the card for everybody, the rest for those whom the gate lets in."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from k8e.a2a.agent import Agent
from k8e.a2a.card import PATH, agent_card
from k8e.a2a.handler import VISITOR, Handler
from k8e.http_visitor import Visitor

__all__ = ["BODY_BYTES", "Gate", "a2a_routes"]

BODY_BYTES = 16 * 1024 * 1024
"""Of one request: 10 MiB of files take a third more as JSON."""

PING_S = 2.0

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Endpoint = Callable[[Request], Awaitable[Response]]


class Gate(Protocol):
    """Of whoever serves HTTP. Both raise HTTPException for requests that they turn away."""

    def check_provenance(self, request: Request) -> None: ...

    async def admit(self, request: Request) -> Visitor: ...


def a2a_routes(agent: Agent, gate: Gate, *, public_url: str = "") -> list[Route]:
    """Card, JSON-RPC and HTTP+JSON, the current protocol and 0.3; `public_url` is for callers who come by a proxy."""
    # The library writes a traceback for every request that it refuses: any stranger could fill a disk with them.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    handler, contexts = Handler(agent), Contexts()
    offered = [
        *create_jsonrpc_routes(handler, PATH, context_builder=contexts, enable_v0_3_compat=True),
        *create_rest_routes(handler, context_builder=contexts, enable_v0_3_compat=True, path_prefix=PATH),
    ]
    # The library's other routes are the same ones below a tenant's name, which mean nothing here.
    plain = [route for route in offered if isinstance(route, Route)]
    return [card_route(gate, public_url), *(guarded(route, gate) for route in plain)]


def card_route(gate: Gate, public_url: str) -> Route:
    async def card(request: Request) -> Response:
        gate.check_provenance(request)
        # SAFETY: the gate has just believed that this name is ours.
        base_url = public_url or f"{request.url.scheme}://{request.headers['host']}"
        return JSONResponse(agent_card_to_dict(agent_card(base_url)), headers={"vary": "host"})

    return Route(AGENT_CARD_WELL_KNOWN_PATH, card, methods=["GET"])


def guarded(route: Route, gate: Gate) -> Route:
    """The library's route behind the gate, with bodies that are bounded and can be read."""
    endpoint: Endpoint = route.endpoint

    async def admitted(request: Request) -> Response:
        request.state.visitor = await gate.admit(request)
        if request.method == "POST" and (trouble := await unreadable(request)):
            return not_json(trouble)
        return kept_alive(await endpoint(request))

    return Route(route.path, admitted, methods=sorted(route.methods or ()), max_body_size=BODY_BYTES)


def kept_alive(response: Response) -> Response:
    """A stream says that it is there while the program says nothing, before the official client's 5 s are over."""
    if isinstance(response, EventSourceResponse):
        response.ping_interval = PING_S
    return response


async def unreadable(request: Request) -> str:
    """What is wrong with a body as JSON; the library would take some of it for a failure of its own."""
    if not await request.body():
        return ""
    try:
        content = await request.json()
        if SURROGATE.search(await request.body()):
            # Halves of a character are JSON, but no text: no answer could repeat them.
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return str(error)
    return ""


def not_json(trouble: str) -> Response:
    error = {"code": -32700, "message": f"not JSON: {trouble[:200]}"}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=400)


class Contexts(ServerCallContextBuilder):
    """A call's context: who asks, and the headers, which name the protocol's version."""

    def build(self, request: Request) -> ServerCallContext:
        state = {VISITOR: request.state.visitor, "headers": dict(request.headers)}
        return ServerCallContext(state=state)
