"""Callers inside the server: what the SDK calls goes straight into the edge, as whoever it is called for.

So roles, rates, owners and the audit trail hold for them exactly as for anybody who comes through a door. A call is a
task of ours and its caller only waits for it: cancelled once, it has the time to stop what it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from grpc import aio

from k8e._proto.stub import SandboxStub
from k8e.byte_budget import ByteReservation
from k8e.client import AsyncSandboxClient
from k8e.client.discovery import Target
from k8e.client.statuses import status
from k8e.doors.service.call import trailing
from k8e.doors.service.edge import Edge
from k8e.doors.service.errors import answer_for
from k8e.errors import K8eError
from k8e.identity import Caller
from k8e.model import OwnerId

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Check", "InsideChannel", "InsideClient"]

_log = logging.getLogger(__name__)

R = TypeVar("R")

Check = Callable[[Caller], None]
"""Raises: K8eError when the caller is no longer good."""


class InsideClient(AsyncSandboxClient):
    """The SDK's client over a channel that is there already."""

    def __init__(self, channel: InsideChannel) -> None:
        super().__init__(target=Target(endpoint="this server", found="inside"))
        self._channel = cast("aio.Channel", channel)
        self._made_stub = SandboxStub(self._channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideChannel:
    """What the stubs need of `grpc.aio.Channel`."""

    edge: Edge
    caller: Caller
    owner: OwnerId
    check: Check
    """Asked before every call: a stream outlives the moment at which its caller was let in."""
    tasks: asyncio.TaskGroup = field(repr=False)

    def unary_unary(self, path: str, **_: object) -> Callable[..., Single[Any]]:
        def call(request: Message, *, timeout: float | None = None) -> Single[Any]:
            return Single(self._call(path, request, timeout))

        return call

    def unary_stream(self, path: str, **_: object) -> Callable[..., InsideStream[Any]]:
        def call(request: Message, *, timeout: float | None = None) -> InsideStream[Any]:
            return self._call(path, request, timeout)

        return call

    def stream_unary(self, path: str, **_: object) -> Callable[..., Single[Any]]:
        def call(requests: AsyncIterable[Message], *, timeout: float | None = None) -> Single[Any]:
            return Single(self._call(path, aiter(requests), timeout))

        return call

    def stream_stream(self, path: str, **_: object) -> Callable[..., InsideStream[Any]]:
        def call(requests: AsyncIterable[Message], *, timeout: float | None = None) -> InsideStream[Any]:
            return self._call(path, aiter(requests), timeout)

        return call

    async def close(self, grace: float | None = None) -> None:
        """Nothing is held: calls end with whoever waits for them."""

    def _call(self, path: str, request: Message | AsyncIterator[Message], timeout_s: float | None) -> InsideStream[Any]:
        return InsideStream(self, path.rpartition("/")[2], request, timeout_s)


@dataclass(slots=True, kw_only=True)
class InsideCall:
    """A call as the service sees it."""

    caller: Caller
    owner: OwnerId
    reservation: ByteReservation
    write: Callable[[Message], Any]
    traceparent: str = ""
    trailers: dict[str, str] = field(default_factory=dict)

    def trail(self, **metadata: str | int | bool) -> None:
        self.trailers |= trailing(**metadata)


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended; `error` is None where all went well."""

    error: aio.AioRpcError | None = None


class InsideStream(Generic[R]):
    """One call: an async iteration over its answers, each given only when it is asked for."""

    def __init__(self, channel: InsideChannel, name: str, request: Any, timeout_s: float | None) -> None:
        self._channel = channel
        self._name = name
        self._request = request
        self._timeout_s = timeout_s
        self._items: asyncio.Queue[Any] = asyncio.Queue(1)
        self._working: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        if self._working is None:
            self._working = self._channel.tasks.create_task(self._work(), name=f"{self._name} from inside")
        try:
            item = await self._items.get()
        except BaseException:
            self.cancel()
            raise
        if not isinstance(item, End):
            return cast("R", item)
        if item.error is not None:
            raise item.error
        raise StopAsyncIteration

    def cancel(self) -> bool:
        if self._working is not None:
            self._working.cancel()
        return True

    async def _work(self) -> None:
        await self._items.put(await self._ended())

    async def _ended(self) -> End:
        """Raises nothing but cancellation: an error of one call must not reach the others."""
        channel = self._channel
        reservation = channel.edge.reservation(channel.owner)
        call = InsideCall(caller=channel.caller, owner=channel.owner, reservation=reservation, write=self._items.put)
        try:
            with contextlib.closing(reservation):
                async with asyncio.timeout(self._timeout_s):
                    channel.check(channel.caller)
                    answer = await channel.edge.answer(self._name, call, self._request)
                    if answer is not None:
                        await self._items.put(await channel.edge.message(call, answer))
        except TimeoutError:
            return End(status("DEADLINE_EXCEEDED", "the call took longer than its deadline"))
        except K8eError as error:
            return End(status(*answer_for(error)))
        except Exception:  # noqa: BLE001 - the edge: logged here, and its text stays with us
            _log.exception("call from inside failed unexpectedly", extra={"rpc": self._name})
            return End(status("INTERNAL", "internal error"))
        return End()


class Single(Generic[R]):
    """A call with one answer: something to await."""

    def __init__(self, call: InsideStream[R]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, R]:
        return self._only().__await__()

    async def _only(self) -> R:
        answer = await anext(self._call)
        await anext(self._call, None)
        return answer
