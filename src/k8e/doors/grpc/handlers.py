"""Every RPC of the descriptor as gRPC wants it: identified, decoded, and answered or refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from k8e.byte_budget import ByteReservation
from k8e.doors.grpc.lobby import Lobby
from k8e.doors.grpc.request_reader import RequestLate, RequestReader
from k8e.doors.service import SERVICE
from k8e.doors.service.call import trailing
from k8e.doors.service.decoding import parsed
from k8e.doors.service.edge import Edge
from k8e.doors.service.encoding import PROTO
from k8e.doors.service.errors import answer_for
from k8e.errors import K8eError
from k8e.identity import Caller, Presented
from k8e.model import OwnerId

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["handlers", "presented", "refuse"]

CUT_S = 0.02
"""How long the end of a caller's messages waits for word that the caller is gone, which comes with it or not at all: a
command must not read an end of input that nobody meant. A caller that says `eof` does not wait."""

Context = aio.ServicerContext[Any, Any]
Handler = Callable[[AsyncIterator[bytes], Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class GrpcCall:
    caller: Caller
    owner: OwnerId
    context: Context
    reservation: ByteReservation

    @property
    def traceparent(self) -> str:
        return header(self.context.invocation_metadata() or (), "traceparent")

    async def write(self, message: Message) -> None:
        await self.context.write(message)

    def trail(self, **metadata: str | int | bool) -> None:
        self.context.set_trailing_metadata(tuple(trailing(**metadata).items()))


def handlers(edge: Edge, lobby: Lobby) -> grpc.GenericRpcHandler:
    """Every method of the service for callers whom the edge admits."""
    reader = RequestReader()
    table = {method.name: registered(edge, method, lobby, reader) for method in SERVICE.methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, table)


def registered(
    edge: Edge, method: MethodDescriptor, lobby: Lobby, reader: RequestReader
) -> grpc.RpcMethodHandler[Any, Any]:
    # A single request is read as a stream of one: gRPC would take it in, with all of its 64 MiB, before anybody has
    # asked whose it is.
    make = grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
    # Requests stay bytes until the handler: gRPC would answer one that does not parse with a code of its own.
    handler: grpc.RpcMethodHandler[Any, Any] = make(
        guarded(edge, method, lobby, reader), response_serializer=serialized
    )
    return handler


def serialized(answer: Message | bytes) -> bytes:
    """A message of a stream; a whole answer comes as bytes already."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def guarded(edge: Edge, method: MethodDescriptor, lobby: Lobby, reader: RequestReader) -> Handler:
    """The edge of the door: identity before, the error table after."""
    kind, name = GetMessageClass(method.input_type), method.name
    decode: Callable[[bytes], Message] = functools.partial(parsed, kind)

    async def each(pieces: AsyncIterator[bytes], context: Context, owner: OwnerId) -> AsyncIterator[Message]:
        async for piece in pieces:
            yield await edge.decoded(owner, piece, decode)
        if method.server_streaming:
            await asyncio.sleep(CUT_S)
        else:
            await check_alive(context)

    async def one(pieces: AsyncIterator[bytes], context: Context, owner: OwnerId) -> Message:
        held = edge.request_reservation(owner)
        context.add_done_callback(lambda _: held.close())  # type: ignore[arg-type]  # the types want a class
        return await edge.decoded(owner, await reader.read(owner, pieces, held), decode)

    async def handle(pieces: AsyncIterator[bytes], context: Context) -> Any:
        try:
            admitted = edge.admit(name, presented(context, lobby))
            lobby.welcome(context.peer())
            request: Message | AsyncIterator[Message]
            if method.client_streaming:
                request = each(pieces, context, admitted.owner)
            else:
                request = await one(pieces, context, admitted.owner)
            reservation = edge.reservation(admitted.owner)
            # A call is done when its answer has gone out, as fast as the caller takes it.
            context.add_done_callback(lambda _: reservation.close())  # type: ignore[arg-type]  # the types want a class
            call = GrpcCall(admitted.caller, admitted.owner, context, reservation)
            answer = await edge.answer(name, call, request)
            if method.server_streaming:
                return None
            return await edge.encoded_whole(call, answer, PROTO)
        except K8eError as error:
            await refuse(context, error)
        except RequestLate:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not arrive in time")

    return handle


async def check_alive(context: Context) -> None:
    """Raises: CancelledError when the caller went away in the middle.

    To a handler that looks like a caller who has said everything, and what was cut off must not be taken for the whole.
    Only a call that is still there takes its headers.
    """
    try:
        await context.send_initial_metadata(())
    except aio.InternalError as error:
        raise asyncio.CancelledError from error


def presented(context: Context, lobby: Lobby) -> Presented:
    """What the connection and the call show about themselves."""
    metadata = context.invocation_metadata() or ()
    return Presented(
        peer=lobby.peer_of(context.peer()),
        authorization=credential(metadata),
        owner=header(metadata, "k8e-owner"),
    )


def credential(metadata: Any) -> str:
    """What was presented; an empty credential is still one, and a bad one."""
    sent = header(metadata, "authorization")
    return sent or ("empty" if any(key == "authorization" for key, _ in metadata) else "")


def header(metadata: Any, name: str) -> str:
    """A header's text; several of one name are joined as HTTP does it, which makes no credential good."""
    return ", ".join(value for key, value in metadata if key == name and isinstance(value, str))


async def refuse(context: Context, error: K8eError) -> NoReturn:
    code, text, told = answer_for(error)
    await context.abort(grpc.StatusCode[code], text, told)
