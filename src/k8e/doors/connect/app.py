"""The application: every RPC of the descriptor over the Connect protocol, as whole messages or as streams.

A caller that goes away, and a deadline that passes, cancel the call, and a cancelled call stops its command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from k8e.byte_budget import ByteReservation
from k8e.doors.connect.bounds import Bounds
from k8e.doors.connect.connections import CONNECTION, Connection
from k8e.doors.connect.envelopes import END, enclosed
from k8e.doors.connect.errors import Failure, failure_for
from k8e.doors.connect.exchanges import Answer, Body, Receive, Scope, Send, headers_of
from k8e.doors.connect.routes import Headers, Route, find
from k8e.doors.service.call import trailing
from k8e.doors.service.edge import Edge
from k8e.doors.service.encoding import Piece
from k8e.errors import K8eError
from k8e.identity.callers import Caller
from k8e.identity.presented import Presented, UnixPeer
from k8e.model import OwnerId

__all__ = ["App"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ConnectCall:
    caller: Caller
    owner: OwnerId
    answer: Answer
    route: Route
    trailers: dict[str, str]
    traceparent: str
    reservation: ByteReservation

    async def write(self, message: Message) -> None:
        await self.answer.open(self.route.content_type)
        await self.answer.write(enclosed(self.route.codec.encoding.message(message)))

    def trail(self, **metadata: str | int | bool) -> None:
        self.trailers |= trailing(**metadata)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a caller that streams, as they arrive."""

    body: Body
    route: Route
    answer: Answer
    edge: Edge
    owner: OwnerId

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        data = await self.body.message()
        await self.answer.open(self.route.content_type)
        if data is None:
            raise StopAsyncIteration
        return await self.edge.decoded(self.owner, data, self.route.decode)


class App:
    def __init__(self, edge: Edge, bounds: Bounds) -> None:
        self._edge = edge
        self._body_s = bounds.body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][CONNECTION]
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            with connection.ending(task):
                peer = UnixPeer(connection.peer.uid, connection.peer.pid)
                await self._serve(scope, peer, receive, Answer(send))
        except asyncio.CancelledError:
            if not connection.is_lost:
                raise

    async def _serve(self, scope: Scope, peer: UnixPeer, receive: Receive, answer: Answer) -> None:
        headers = headers_of(scope)
        route = find(scope["method"], scope["path"], headers)
        if isinstance(route, Failure):
            await answer.fail(route)
        elif route.is_streamed:
            await self._stream(route, presented(peer, headers), receive, answer)
        else:
            await self._unary(route, presented(peer, headers), receive, answer)

    async def _unary(self, route: Route, shown: Presented, receive: Receive, answer: Answer) -> None:
        trailers: dict[str, str] = {}

        with contextlib.ExitStack() as sent:

            async def work() -> list[Piece]:
                call = self._call(route, shown, answer, trailers)
                sent.callback(call.reservation.close)
                body = Body(receive, self._edge.request_reservation(call.owner))
                sent.callback(body.reservation.close)
                data = await self._in_time(body.whole())
                request = await self._edge.decoded(call.owner, data, route.decode)
                made = await self._edge.answer(route.name, call, request)
                body.reservation.resize(0)
                return await self._edge.encoded(call, made, route.codec.encoding)

            outcome = await attempt(route, work)
            if isinstance(outcome, Failure):
                await answer.fail(outcome)
            else:
                beside = [(f"trailer-{name}", value) for name, value in trailers.items()]
                await answer.whole(200, [("content-type", route.content_type), *beside], outcome)

    async def _stream(self, route: Route, shown: Presented, receive: Receive, answer: Answer) -> None:
        """The head goes out after the first message, not later: a caller may wait for it before it sends the rest."""
        trailers: dict[str, str] = {}

        async def work() -> None:
            call = self._call(route, shown, answer, trailers)
            body = Body(receive, self._edge.request_reservation(call.owner))
            with contextlib.closing(call.reservation), contextlib.closing(body.reservation):
                request = await self._request(route, call.owner, body, answer)
                message = await self._edge.answer(route.name, call, request)
                if not route.method.server_streaming:
                    await call.write(message)

        outcome = await attempt(route, work)
        await answer.open(route.content_type)
        await answer.end(enclosed(ending(outcome, trailers), flags=END))

    def _call(self, route: Route, shown: Presented, answer: Answer, trailers: dict[str, str]) -> ConnectCall:
        admitted = self._edge.admit(route.name, shown)
        return ConnectCall(
            caller=admitted.caller,
            owner=admitted.owner,
            answer=answer,
            route=route,
            trailers=trailers,
            traceparent=shown.traceparent,
            reservation=self._edge.reservation(admitted.owner),
        )

    async def _request(self, route: Route, owner: OwnerId, body: Body, answer: Answer) -> Message | Messages:
        if route.method.client_streaming:
            return Messages(body, route, answer, self._edge, owner)
        data = await self._in_time(body.only_message())
        await answer.open(route.content_type)
        return await self._edge.decoded(owner, data, route.decode)

    async def _in_time(self, arriving: Awaitable[bytes]) -> bytes:
        async with asyncio.timeout(self._body_s):
            return await arriving


def presented(peer: UnixPeer, headers: Headers) -> Presented:
    """An empty credential is still one, and a bad one."""
    authorization = headers.get("authorization")
    return Presented(
        peer=peer,
        authorization="" if authorization is None else authorization or "empty",
        owner=headers.get("k8e-owner", ""),
        traceparent=headers.get("traceparent", ""),
    )


async def attempt(route: Route, work: Callable[[], Awaitable[T]]) -> T | Failure:
    """The edge of the door: whatever goes wrong becomes a word of the protocol."""
    try:
        async with asyncio.timeout(route.timeout_s) as deadline:
            return await work()
    except TimeoutError:
        what = "the call took longer than its deadline" if deadline.expired() else "the request did not arrive in time"
        return Failure("deadline_exceeded", what)
    except K8eError as error:
        return failure_for(error)
    except Exception:  # noqa: BLE001 - the edge: logged here, and its text stays with us
        _log.exception("call failed unexpectedly", extra={"rpc": route.name})
        return Failure("internal", "internal error")


def ending(outcome: object, trailers: Mapping[str, str]) -> bytes:
    """The last envelope's text."""
    told: dict[str, object] = {}
    metadata = {name: [value] for name, value in trailers.items()}
    if isinstance(outcome, Failure):
        told["error"] = outcome.shown()
        metadata |= {name: [value] for name, value in outcome.metadata}
    if metadata:
        told["metadata"] = metadata
    return json.dumps(told).encode()
