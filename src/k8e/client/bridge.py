"""grpc for a forked child: a fresh process makes the calls, because grpc's threads do not survive a fork.

The child and its relay share one socket; each call travels on a pair of its own, which is handed over. So a slow
reader slows only its own call, closing a pair cancels its call, and when the child ends, so does the relay.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Mapping
from typing import Any, Generic, Self, TypeVar

from grpc import aio

from k8e.client.discovery import Target
from k8e.client.statuses import status

__all__ = ["BridgeChannel", "receive", "send"]

HEAD = struct.Struct("!BI")
MESSAGE, END = 0, 1
RELAY = """
import json, sys
facts = json.load(sys.stdin)
sys.path[:] = facts["path"]
from k8e.client.relay import run
run(int(sys.argv[1]), facts)
"""
"""Where modules are is said, too: the program may have changed it since its own start."""

R = TypeVar("R")

Serialize = Callable[[Any], bytes]


def send(writer: asyncio.StreamWriter, kind: int, payload: bytes) -> None:
    writer.write(HEAD.pack(kind, len(payload)))
    writer.write(payload)


async def receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One frame. Raises: asyncio.IncompleteReadError when the other side is gone."""
    kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
    return kind, await reader.readexactly(length)


class BridgeChannel:
    """What the stubs need of `grpc.aio.Channel`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._control: socket.socket | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    def unary_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Callable[[bytes], R]
    ) -> Callable[..., Single[R]]:
        def call(request: object, **options: Any) -> Single[R]:
            return Single(self._call(path, request_serializer, response_deserializer, once(request), options))

        return call

    def unary_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Callable[[bytes], R]
    ) -> Callable[..., BridgedCall[R]]:
        def call(request: object, **options: Any) -> BridgedCall[R]:
            return self._call(path, request_serializer, response_deserializer, once(request), options)

        return call

    def stream_unary(
        self, path: str, request_serializer: Serialize, response_deserializer: Callable[[bytes], R]
    ) -> Callable[..., Single[R]]:
        def call(requests: AsyncIterable[object], **options: Any) -> Single[R]:
            return Single(self._call(path, request_serializer, response_deserializer, requests, options))

        return call

    def stream_stream(
        self, path: str, request_serializer: Serialize, response_deserializer: Callable[[bytes], R]
    ) -> Callable[..., BridgedCall[R]]:
        def call(requests: AsyncIterable[object], **options: Any) -> BridgedCall[R]:
            return self._call(path, request_serializer, response_deserializer, requests, options)

        return call

    async def close(self, grace: float | None = None) -> None:
        control, relay = self._control, self._relay
        self._control, self._relay = None, None
        if control is not None:
            control.close()
        if relay is not None:
            await asyncio.to_thread(relay.wait)

    def _call(
        self,
        path: str,
        serialize: Serialize,
        deserialize: Callable[[bytes], R],
        requests: AsyncIterable[object],
        options: Mapping[str, Any],
    ) -> BridgedCall[R]:
        opening = {
            "path": path,
            "timeout": options.get("timeout"),
            "metadata": [list(pair) for pair in options.get("metadata") or ()],
        }
        return BridgedCall(self._pair(), json.dumps(opening).encode(), serialize, deserialize, requests)

    def _pair(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._hand_over(theirs)
            except ConnectionError:
                # It was killed; the calls it had are lost, and the next one needs not be.
                self._forget_relay()
                self._hand_over(theirs)
        return ours

    def _hand_over(self, connection: socket.socket) -> None:
        if self._control is None:
            self._control, self._relay = start_relay(self._target)
        socket.send_fds(self._control, [b"c"], [connection.fileno()])

    def _forget_relay(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._relay is not None:
            self._relay.wait()
        self._control, self._relay = None, None


class BridgedCall(Generic[R]):
    """One call: an async iteration over its answers."""

    def __init__(
        self,
        connection: socket.socket,
        opening: bytes,
        serialize: Serialize,
        deserialize: Callable[[bytes], R],
        requests: AsyncIterable[object],
    ) -> None:
        self._connection = connection
        self._opening = opening
        self._serialize = serialize
        self._deserialize = deserialize
        self._requests = requests
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._feeding: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> R:
        reader = self._reader or await self._open()
        try:
            answer = await self._next(reader)
        except BaseException:
            self.cancel()
            raise
        if answer is None:
            self.cancel()
            raise StopAsyncIteration
        return answer

    def cancel(self) -> bool:
        if self._feeding is not None:
            self._feeding.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._connection.close()
        return True

    async def _open(self) -> asyncio.StreamReader:
        self._reader, self._writer = reader, _ = await asyncio.open_connection(sock=self._connection)
        send(self._writer, MESSAGE, self._opening)
        # Born outside a group because a call is an object that its reader holds; it ends with the call.
        loop = asyncio.get_running_loop()
        self._feeding = loop.create_task(self._feed(self._writer), name="requests of a call")
        self._feeding.add_done_callback(retrieved)
        return reader

    async def _next(self, reader: asyncio.StreamReader) -> R | None:
        try:
            kind, payload = await receive(reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise lost() from error
        if kind == MESSAGE:
            return self._deserialize(payload)
        told = json.loads(payload)
        if told["code"] == "OK":
            return None
        raise status(told["code"], str(told["details"]), ((str(key), str(value)) for key, value in told["trailing"]))

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        is_whole = False
        try:
            async for request in self._requests:
                send(writer, MESSAGE, self._serialize(request))
                await writer.drain()
            send(writer, END, b"")
            await writer.drain()
            is_whole = True
        except ConnectionError:
            return  # the answer, or its absence, says why
        finally:
            # As grpc does: who cannot go on with the requests gives the call up.
            if not is_whole:
                writer.transport.abort()


def retrieved(feeding: asyncio.Task[None]) -> None:
    """Take note of an error that `Watched` has kept for whoever made the call."""
    if not feeding.cancelled():
        feeding.exception()


class Single(Generic[R]):
    """A call with one answer: something to await."""

    def __init__(self, call: BridgedCall[R]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, R]:
        return self._only().__await__()

    async def _only(self) -> R:
        found = [answer async for answer in self._call]
        if not found:
            raise lost()
        return found[0]


async def once(request: object) -> AsyncIterator[object]:
    yield request


def lost() -> aio.AioRpcError:
    return status("UNAVAILABLE", "the process that calls for a forked child has ended")


def start_relay(target: Target) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as facts:
        # Not as an argument: the key in it is nobody else's to see.
        facts.write(json.dumps({**described(target), "path": sys.path}).encode())
        facts.seek(0)
        relay = subprocess.Popen(
            [sys.executable, "-c", RELAY, str(theirs.fileno())],
            stdin=facts,
            pass_fds=[theirs.fileno()],
            # Ctrl-C is for the program; the relay ends with it.
            start_new_session=True,
        )
    return ours, relay


def described(target: Target) -> dict[str, str | None]:
    return {
        "endpoint": target.endpoint,
        "found": target.found,
        "roots": text(target.roots),
        "key": text(target.key),
        "certificate": text(target.certificate),
    }


def text(pem: bytes | None) -> str | None:
    return None if pem is None else pem.decode("latin-1")
