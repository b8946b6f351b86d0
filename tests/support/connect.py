"""A bare client of the JSON door: raw bytes on a unix socket, nothing hidden, so that tests can misbehave."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8e.byte_budget import ByteBudget
from k8e.doors.connect import Bounds, serve
from k8e.doors.service.edge import Step
from tests.support.door import OpenDoor, open_door

__all__ = ["ConnectDoor", "Reply", "Wire", "connect_door", "envelope", "head"]

PREFIX = "/sandbox.v1.SandboxService/"
END = 2


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def envelopes(self) -> list[tuple[int, bytes]]:
        found, at = [], 0
        while at < len(self.body):
            flags, length = struct.unpack_from(">BI", self.body, at)
            found.append((flags, self.body[at + 5 : at + 5 + length]))
            at += 5 + length
        return found

    @property
    def messages(self) -> list[Any]:
        return [json.loads(data) for flags, data in self.envelopes if not flags]

    @property
    def end(self) -> Any:
        flags, data = self.envelopes[-1]
        assert flags == END
        return json.loads(data)


def envelope(message: object, *, flags: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


@dataclass(slots=True)
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self, rpc: str, kind: str, data: bytes, **headers: str) -> None:
        """A whole request, not waiting for its answer."""
        await self.raw(head(rpc, kind, {"content-length": str(len(data)), **dashed(headers)}) + data)

    async def flood(self, size: int) -> None:
        """Send zeros to a command's standard input until they are sent or nobody takes them any more."""
        piece = envelope({"stdin": base64.b64encode(bytes(48 * 1024)).decode()})
        for _ in range(size // len(piece)):
            self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        before = -1
        while self.unsent and self.unsent != before:
            before = self.unsent
            await asyncio.sleep(0.2)

    @property
    def unsent(self) -> int:
        """Bytes that wait because the server does not read."""
        return self.writer.transport.get_write_buffer_size()

    async def ask(self, rpc: str, body: object = b"{}", *, kind: str = "application/json", **headers: str) -> Reply:
        """One whole request and its whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.begin(rpc, kind, data, **headers)
        return await self.reply()

    async def ask_stream(self, rpc: str, *messages: object, **headers: str) -> Reply:
        data = b"".join(envelope(message) for message in messages)
        return await self.ask(rpc, data, kind="application/connect+json", **headers)

    async def open_stream(self, rpc: str, **headers: str) -> None:
        """Only the head of a chunked request."""
        await self.raw(head(rpc, "application/connect+json", {"transfer-encoding": "chunked", **dashed(headers)}))

    async def send(self, message: object) -> None:
        data = envelope(message)
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name: value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """The next chunk of a chunked answer; the server sends one envelope in each."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def message(self) -> Any:
        data = await self.chunk()
        assert data[0] == 0, data
        return json.loads(data[5:])

    async def reply(self) -> Reply:
        status, headers = await self.head()
        if "content-length" in headers:
            return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        body = bytearray()
        while piece := await self.chunk():
            body += piece
        return Reply(status, headers, bytes(body))

    async def end(self) -> bytes:
        """Everything until the server closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()


def dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def head(rpc: str, kind: str, headers: Mapping[str, str]) -> bytes:
    path = rpc if rpc.startswith("/") else PREFIX + rpc
    fields = {"host": "localhost", "content-type": kind, **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


@dataclass(frozen=True, slots=True)
class ConnectDoor:
    path: Path
    door: OpenDoor

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_unix_connection(str(self.path), limit=1 << 20)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def connect_door(
    root: Path,
    *,
    steps: Sequence[Step] = (),
    answers: ByteBudget | None = None,
    requests: ByteBudget | None = None,
    **bounds: int | float,
) -> AsyncIterator[ConnectDoor]:
    """The JSON door over the real engine on bare sandboxes, beside the gRPC door."""
    async with open_door(root, steps=steps, answers=answers, requests=requests) as door:
        path = root / "server" / "k8e.sock"
        async with serve(door.edge, path=path, bounds=Bounds(**bounds)):  # type: ignore[arg-type]  # any of them
            yield ConnectDoor(path, door)
