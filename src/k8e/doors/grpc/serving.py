"""The door itself: every RPC of the descriptor is registered, identified, and answered or refused.

One gRPC server stands behind each address, because the kernel can name a loopback peer only where both ends of its
connection are known.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.engine import EgressCounts, Engine, PoolStatus
from k8e.doors.grpc.call import Call
from k8e.doors.grpc.errors import ERROR_KEY, answer_for, single
from k8e.doors.grpc.execs import ExecRpcs
from k8e.doors.grpc.fields import MESSAGE_BYTES
from k8e.doors.grpc.files import FileRpcs
from k8e.doors.grpc.network import NetworkRpcs
from k8e.doors.grpc.runs import RunRpcs
from k8e.doors.grpc.secrets import SecretRpcs
from k8e.doors.grpc.sessions import SessionRpcs
from k8e.doors.grpc.terminals import TerminalRpcs
from k8e.errors import Denied, HostUnsupported, K8eError, SandboxFailed
from k8e.identity import Identifier, Peer
from k8e.model import OwnerId, SessionSpec, Template

__all__ = ["Address", "Credentials", "Door", "ServerFacts", "serve"]

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"]
DRAIN_S = 5.0
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # Without this two servers could share a port, and callers would meet either.
    ("grpc.so_reuseport", 0),
)

Handler = Callable[[Any, "aio.ServicerContext[Any, Any]"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    """0 takes any free port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Credentials(Protocol):
    """PEM texts of the server's certificate."""

    @property
    def key(self) -> bytes: ...
    @property
    def chain(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server says about itself, and how it is told to stop."""

    pid: int
    data_dir: str
    version: str
    doors: Callable[[], Mapping[str, str]]
    operator: OwnerId
    """The only identity that may stop the server."""
    stop: Callable[[bool], None]


class Door:
    """All RPCs over one engine; an RPC that no room serves is refused with a clear text."""

    def __init__(self, engine: Engine, *, defaults: SessionSpec, facts: ServerFacts) -> None:
        self._rooms = (
            SessionRpcs(engine, defaults),
            ExecRpcs(engine),
            RunRpcs(engine),
            FileRpcs(engine),
            TerminalRpcs(engine),
            SecretRpcs(engine),
            NetworkRpcs(engine),
            ServerRpcs(engine, facts),
        )

    def handlers(self, identifier: Identifier) -> grpc.GenericRpcHandler:
        """Every method of the service for callers whom `identifier` knows."""
        table = {method.name: self._registered(method, identifier) for method in SERVICE.methods}
        return grpc.method_handlers_generic_handler(SERVICE.full_name, table)

    def _registered(self, method: MethodDescriptor, identifier: Identifier) -> grpc.RpcMethodHandler[Any, Any]:
        serve_method = self._method(method.name)
        sides = tuple("stream" if side else "unary" for side in (method.client_streaming, method.server_streaming))
        make = getattr(grpc, f"{sides[0]}_{sides[1]}_rpc_method_handler")
        handler: grpc.RpcMethodHandler[Any, Any] = make(
            guarded(method.name, serve_method, identifier),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        return handler

    def _method(self, name: str) -> Callable[[Call, Any], Awaitable[Any]]:
        found = next((method for room in self._rooms if (method := getattr(room, name, None))), None)
        return found or unserved(name)


class ServerRpcs:
    def __init__(self, engine: Engine, facts: ServerFacts) -> None:
        self._engine = engine
        self._facts = facts

    async def ServerStatus(self, call: Call, request: pb.ServerStatusRequest) -> pb.ServerStatusResponse:
        status = self._engine.status()
        runtimes = [
            pb.RuntimeStatus(name=name, available=each.available, detail=each.detail)
            for name, each in status.runtimes.items()
        ]
        return pb.ServerStatusResponse(
            pid=self._facts.pid,
            data_dir=self._facts.data_dir,
            doors=self._facts.doors(),
            runtimes=runtimes,
            pool_json=json.dumps([pool_entry(*each) for each in status.pool.items()]),
            sessions=status.sessions,
            version=self._facts.version,
            egress_json=json.dumps(egress_entry(status.egress)),
        )

    async def StopServer(self, call: Call, request: pb.StopServerRequest) -> pb.StopServerResponse:
        if call.owner != self._facts.operator:
            raise Denied("only the user that runs the server may stop it")
        self._facts.stop(request.destroy)
        return pb.StopServerResponse(ok=True)


def pool_entry(template: Template, status: PoolStatus) -> dict[str, str | int]:
    """One line of the pool for people and programs."""
    return {
        "runtime": template.runtime,
        "image": template.image,
        "memory_bytes": template.memory_bytes,
        "ready": status.ready,
        "building": status.building,
        "target": status.target,
        "warm_claims": status.warm_claims,
        "cold_claims": status.cold_claims,
    }


def egress_entry(counts: EgressCounts) -> dict[str, int]:
    """What the network decided, in numbers."""
    return {
        "allowed": counts.allowed,
        "denied": counts.denied,
        "closed": counts.closed,
        "bytes_sent": counts.bytes_sent,
        "bytes_received": counts.bytes_received,
        "unclaimed": counts.unclaimed,
    }


def unserved(name: str) -> Callable[[Call, Any], Awaitable[Any]]:
    async def refuse(call: Call, request: object) -> None:
        raise HostUnsupported(f"{name} is not served by this server yet")

    return refuse


def guarded(name: str, method: Callable[[Call, Any], Awaitable[Any]], identifier: Identifier) -> Handler:
    """The edge of the door: identity before, the error table after."""

    async def handle(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        owner = identifier.identify(Peer.parse(context.peer()))
        if owner is None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "unknown caller: connect from this machine's loopback address",
                ((ERROR_KEY, "unauthenticated"),),
            )
        try:
            return await method(Call(owner, context), request)
        except (aio.AbortError, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - the edge: callers see a status, never our stack
            await context.abort(*answer_for(known(name, single(error))))

    return handle


def known(name: str, error: BaseException) -> K8eError:
    """Errors of ours as they are; a bug is logged once, here, and its text stays with us."""
    if isinstance(error, K8eError):
        return error
    if not isinstance(error, Exception):
        raise error
    log.error("call failed unexpectedly", exc_info=error, extra={"rpc": name})
    return SandboxFailed("internal error", type(error).__name__)


@asynccontextmanager
async def serve(
    door: Door,
    *,
    address: Address,
    credentials: Credentials,
    identify: Callable[[Address], Identifier],
    undrained: Callable[[], None] = lambda: None,
) -> AsyncIterator[Address]:
    """Serve on one address until the block ends; yields the real address.

    At the end running calls get a while to finish; then `undrained` may leave without cancelling them, because
    cancelling a call stops its command. Raises: OSError when the address is taken.
    """
    server = aio.server(options=OPTIONS)
    tls = grpc.ssl_server_credentials([(credentials.key, credentials.chain)])
    try:
        port = server.add_secure_port(str(address), tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    bound = Address(address.host, port)
    server.add_generic_rpc_handlers((door.handlers(identify(bound)),))
    await server.start()
    try:
        yield bound
    finally:
        try:
            async with asyncio.timeout(DRAIN_S):
                await server.stop(2 * DRAIN_S)
        except TimeoutError:
            undrained()
            await server.stop(None)
