"""What the stubs need of `grpc.aio.Channel`, over the unix socket: the Connect protocol with protobuf in it.

A call has a connection of its own while it runs, so the end of one tells the server that the call is over, whatever
else this process does. Unlike grpc it has no threads: a forked child simply makes connections of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from grpc import aio

from k8e.client.light.http import LostConnectionError, envelope
from k8e.client.light.refusals import Refused, ended, refused
from k8e.client.light.unix import END_OF_STREAM, PATIENCE_S
from k8e.client.local.exchange import Exchange, dial
from k8e.client.statuses import status

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["NOT_CONNECTED", "LocalChannel"]

NOT_CONNECTED: Final = "not connected"
"""How an error begins that came before anything was sent."""

_UNARY: Final = "application/proto"
_STREAMED: Final = "application/connect+proto"

R = TypeVar("R")

Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]


class LocalChannel:
    """One server, with whatever every call to it carries."""

    def __init__(self, socket: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._socket = socket
        self._headers = {"connect-protocol-version": "1", **dict(metadata)}
        self._open: dict[Exchange, asyncio.Task[None] | None] = {}
        """Connections with a call, and who sends on them beside it."""
        self._is_closed = False

    def unary_unary(
        self, path: str, *, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(request: Message, *, timeout: float | None = None) -> Any:
            return response_deserializer(await self._only(path, request_serializer(request), timeout))

        return call

    def unary_stream(
        self, path: str, *, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> Callable[..., Stream[Any]]:
        def call(request: Message, *, timeout: float | None = None) -> Stream[Any]:
            return Stream(self, path, envelope(request_serializer(request)), response_deserializer, timeout)

        return call

    def stream_unary(
        self, path: str, *, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(requests: AsyncIterable[Message], *, timeout: float | None = None) -> Any:
            sent = _enclosed(requests, request_serializer)
            found = [each async for each in Stream(self, path, sent, response_deserializer, timeout)]
            if len(found) != 1:
                raise status("INTERNAL", f"the server gave {len(found)} answers where one was expected")
            return found[0]

        return call

    def stream_stream(
        self, path: str, *, request_serializer: Serialize, response_deserializer: Deserialize
    ) -> Callable[..., Stream[Any]]:
        def call(requests: AsyncIterable[Message], *, timeout: float | None = None) -> Stream[Any]:
            return Stream(self, path, _enclosed(requests, request_serializer), response_deserializer, timeout)

        return call

    async def close(self, grace: float | None = None) -> None:
        """End what still runs: whoever waits for it is cancelled."""
        self._is_closed = True
        senders = [task for task in self._open.values() if task]
        for exchange in list(self._open):
            self.drop(exchange)
        if senders:
            await asyncio.wait(senders)

    async def begin(
        self, path: str, kind: str, request: bytes | AsyncIterator[bytes], timeout_s: float | None
    ) -> Exchange:
        """A connection with a request on it, to be dropped at the end of the call. Raises: AioRpcError."""
        head = {"content-type": kind, **_deadline(timeout_s), **self._headers}
        body = request if isinstance(request, bytes) else None
        try:
            exchange = await dial(self._socket)
        except OSError as error:
            raise status("UNAVAILABLE", f"{NOT_CONNECTED}: {error.strerror or error}") from error
        if self._is_closed:
            exchange.hang_up()
            raise asyncio.CancelledError("the channel was closed")
        self._open[exchange] = None
        try:
            await exchange.send_head(path, head, body)
        except BaseException:
            self.drop(exchange)
            raise
        if not isinstance(request, bytes):
            self._open[exchange] = _task(_send(exchange, request))
        return exchange

    def drop(self, exchange: Exchange) -> None:
        sending = self._open.pop(exchange, None)
        if sending is not None:
            sending.cancel()
        exchange.hang_up()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Whatever is wrong with the connection becomes a status. Raises: AioRpcError."""
        try:
            yield
        except TimeoutError as error:
            raise status("DEADLINE_EXCEEDED", "the server says nothing") from error
        except LostConnectionError as error:
            if self._is_closed:
                raise asyncio.CancelledError("the channel was closed") from error
            raise status("UNAVAILABLE", str(error)) from error

    async def _only(self, path: str, request: bytes, timeout_s: float | None) -> bytes:
        with self.told():
            async with asyncio.timeout(_limit_s(timeout_s)):
                exchange = await self.begin(path, _UNARY, request, timeout_s)
                try:
                    code, headers = await exchange.receive_head()
                    body = await exchange.receive_all()
                finally:
                    self.drop(exchange)
        if code != 200:
            raise _failure(refused(code, headers, body))
        return body


class Stream(Generic[R]):
    """A call with many answers, each read only when it is asked for; leaving one half-way ends it by `cancel`."""

    def __init__(
        self,
        channel: LocalChannel,
        path: str,
        request: bytes | AsyncIterator[bytes],
        deserialize: Callable[[bytes], R],
        timeout_s: float | None,
    ) -> None:
        self._channel = channel
        self._path = path
        self._request = request
        self._deserialize = deserialize
        self._timeout_s = timeout_s
        self._end_at: float | None = None
        self._exchange: Exchange | None = None
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        if self._is_over:
            raise StopAsyncIteration
        try:
            with self._channel.told():
                flags, data = await self._next()
        except BaseException:
            is_cancelled = self._is_over
            self.cancel()
            if is_cancelled:
                raise asyncio.CancelledError from None
            raise
        if not flags & END_OF_STREAM:
            return self._deserialize(data)
        self.cancel()
        if (told := ended(data)) is not None:
            raise _failure(told)
        raise StopAsyncIteration

    def cancel(self) -> bool:
        self._is_over = True
        if self._exchange is not None:
            self._channel.drop(self._exchange)
        return True

    async def _next(self) -> tuple[int, bytes]:
        if self._exchange is None:
            limit_s = _limit_s(self._timeout_s)
            self._end_at = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        # Around each answer and not around all: between two of them the caller does something else.
        async with asyncio.timeout_at(self._end_at):
            if self._exchange is None:
                self._exchange = await self._channel.begin(self._path, _STREAMED, self._request, self._timeout_s)
                code, headers = await self._exchange.receive_head()
                if code != 200:
                    raise _failure(refused(code, headers, await self._exchange.receive_all()))
            return await self._exchange.receive_envelope()


def _task(sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """One that lives as long as its call: whoever drops the connection ends it."""
    return asyncio.create_task(sending, name="k8e client sends")  # noqa: TID251


async def _send(exchange: Exchange, pieces: AsyncIterator[bytes]) -> None:
    """Send beside the answer, which may begin and end before all is sent."""
    try:
        async for piece in pieces:
            await exchange.send_piece(piece)
        await exchange.end_pieces()
    except LostConnectionError:
        pass  # it stopped listening: then it has answered, or reading tells
    except asyncio.CancelledError:
        exchange.hang_up()
        raise
    except Exception:  # noqa: BLE001 - the caller's own, who is told by whoever made the pieces
        exchange.hang_up()


async def _enclosed(requests: AsyncIterable[Message], serialize: Serialize) -> AsyncIterator[bytes]:
    async for each in requests:
        yield envelope(serialize(each))


def _deadline(timeout_s: float | None) -> dict[str, str]:
    """What the server is told of it; it takes ten digits, and more are as good as none."""
    if timeout_s is None or timeout_s * 1000 >= 10**10:
        return {}
    return {"connect-timeout-ms": str(int(timeout_s * 1000))}


def _limit_s(timeout_s: float | None) -> float | None:
    """The server keeps the deadline; this is for one that says nothing any more."""
    return None if timeout_s is None else timeout_s + PATIENCE_S


def _failure(told: Refused) -> aio.AioRpcError:
    return status(told.code, told.text, told.beside.items())
