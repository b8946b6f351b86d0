"""The door itself: every RPC of the descriptor is registered, identified, and answered or refused.

One gRPC server stands behind each address, because the kernel can name a loopback peer only where both ends of its
connection are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from k8e.doors.service import SERVICE, Service
from k8e.doors.service.errors import ERROR_KEY, answer_for
from k8e.doors.service.fields import MESSAGE_BYTES
from k8e.errors import K8eError
from k8e.identity import Identifier, Peer
from k8e.identity.callers import Caller
from k8e.model import OwnerId

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Address", "Credentials", "serve"]

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


@dataclass(frozen=True, slots=True)
class GrpcCall:
    caller: Caller
    context: aio.ServicerContext[Any, Any]

    @property
    def owner(self) -> OwnerId:
        return self.caller.owner

    async def write(self, message: Message) -> None:
        await self.context.write(message)

    def trail(self, **metadata: str | int | bool) -> None:
        values = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in metadata.items()}
        self.context.set_trailing_metadata(
            tuple((f"k8e-{key.replace('_', '-')}", text) for key, text in values.items())
        )


def handlers(service: Service, identifier: Identifier) -> grpc.GenericRpcHandler:
    """Every method of the service for callers whom `identifier` knows."""
    table = {method.name: registered(service, method, identifier) for method in SERVICE.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, table)


def registered(service: Service, method: MethodDescriptor, identifier: Identifier) -> grpc.RpcMethodHandler[Any, Any]:
    sides = tuple("stream" if side else "unary" for side in (method.client_streaming, method.server_streaming))
    make = getattr(grpc, f"{sides[0]}_{sides[1]}_rpc_method_handler")
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        guarded(service, method.name, identifier),
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=GetMessageClass(method.output_type).SerializeToString,
    )
    return handler


def guarded(service: Service, name: str, identifier: Identifier) -> Handler:
    """The edge of the door: identity before, the error table after."""

    async def handle(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        caller = identifier.identify(Peer.parse(context.peer()))
        if caller is None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "unknown caller: connect from this machine's loopback address",
                ((ERROR_KEY, "unauthenticated"),),
            )
        try:
            return await service.answer(name, GrpcCall(caller, context), request)
        except K8eError as error:
            code, text, trailing = answer_for(error)
            await context.abort(grpc.StatusCode[code], text, trailing)

    return handle


@asynccontextmanager
async def serve(
    service: Service,
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
    server.add_generic_rpc_handlers((handlers(service, identify(bound)),))
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
