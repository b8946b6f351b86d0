"""The process that calls for a forked child (see `bridge`): started with the number of its socket, it ends with it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import grpc
from grpc import aio

from k8e.client.bridge import END, MESSAGE, receive, send
from k8e.client.channels import grpc_channel
from k8e.client.discovery import Target

__all__ = ["main", "run", "serve"]

QUEUED = 4


async def serve(control: socket.socket, channel: aio.Channel) -> None:
    """Make every call that is handed over, until the other side is gone."""
    async with asyncio.TaskGroup() as group:
        while (connection := await handed_over(control)) is not None:
            group.create_task(relay(connection, channel), name="one call")
        raise EndedError


class EndedError(Exception):
    """The child is gone: nobody waits for the calls that still run."""


async def handed_over(control: socket.socket) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(control.fileno())
    data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    return socket.socket(fileno=descriptors[0]) if data and descriptors else None


async def relay(connection: socket.socket, channel: aio.Channel) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        _, opening = await receive(reader)
        wanted = json.loads(opening)
        metadata = tuple((str(key), str(value)) for key, value in wanted["metadata"])
        # Every kind of method as the one that streams both ways: the bytes on the wire are the same.
        make: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(str(wanted["path"]), bytes, bytes)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED)
        call = make(queued(queue), timeout=wanted["timeout"], metadata=metadata)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen(reader, queue, call), name="requests of one call")
            try:
                await answers(call, writer)
            finally:
                listening.cancel()
    except* (asyncio.IncompleteReadError, ConnectionError):
        pass  # it was cancelled
    finally:
        writer.close()


async def listen(
    reader: asyncio.StreamReader, queue: asyncio.Queue[bytes | None], call: aio.StreamStreamCall[bytes, bytes]
) -> None:
    """Pass the requests on; a caller that hangs up cancels its call."""
    try:
        kind = MESSAGE
        while kind != END:
            kind, payload = await receive(reader)
            await queue.put(payload if kind == MESSAGE else None)
        await reader.read(1)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    call.cancel()


async def queued(queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
    while (payload := await queue.get()) is not None:
        yield payload


async def answers(call: aio.StreamStreamCall[bytes, bytes], writer: asyncio.StreamWriter) -> None:
    code, details, trailing = "OK", "", list[list[str]]()
    try:
        async for message in call:
            send(writer, MESSAGE, message)
            await writer.drain()
    except aio.AioRpcError as error:
        code, details = error.code().name, error.details() or ""
        trailing = [[key, value] for key, value in error.trailing_metadata() or () if isinstance(value, str)]
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        code, details = grpc.StatusCode.CANCELLED.name, "cancelled"
    send(writer, END, json.dumps({"code": code, "details": details, "trailing": trailing}).encode())
    await writer.drain()


async def main(control: socket.socket, described: dict[str, str | None]) -> None:
    target = Target(
        endpoint=described["endpoint"] or "",
        found=described["found"] or "",
        roots=pem(described["roots"]),
        key=pem(described["key"]),
        certificate=pem(described["certificate"]),
    )
    async with grpc_channel(target) as channel:
        try:
            await serve(control, channel)
        except* EndedError:
            pass


def pem(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def run(number: int, described: dict[str, str | None]) -> None:
    with socket.socket(fileno=number) as own:
        asyncio.run(main(own, described))
