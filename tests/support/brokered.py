"""A broker between a program and a real TLS server, all on this machine: what the host got, what the program saw."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from k8e.egress.authority import Authority
from k8e.egress.book import Book
from k8e.egress.broker import Broker
from k8e.egress.desk import Member
from k8e.egress.sockets import furnish
from k8e.egress.upstream import Unreachable
from k8e.model import Decision, EgressPolicy, Grant, SandboxId

__all__ = ["HOST", "VALUE", "WORD", "Guest", "Rig", "open_rig"]

SANDBOX = SandboxId("sb-test")
HOST = "api.example"
WORD = "k8e_placeholder_0123456789abcdef"
VALUE = "sk-live-THE-REAL-VALUE-of-this-test"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Guest:
    """A sandbox as the broker knows it."""

    grants: tuple[Grant, ...]
    sandbox: SandboxId = SANDBOX
    policy: EgressPolicy = field(default_factory=EgressPolicy)
    book: Book = field(default_factory=Book)


@dataclass(slots=True)
class Rig:
    """Programs dial `port` with TLS as HOST; `handler` is what the real host does."""

    port: int
    trust: ssl.SSLContext
    ca: str
    guest: Guest
    told: list[Decision]
    dials: list[socket.socket]
    counted: list[tuple[int, int]]

    async def connect(self, name: str = HOST) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname=name)

    async def ask(self, *lines: str, body: bytes = b"") -> bytes:
        """One request on a connection of its own; everything that came back."""
        reader, writer = await self.connect()
        head = "\r\n".join([*lines, f"Host: {HOST}", "Connection: close", "", ""])
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        return answer


class _Desk:
    def __init__(self) -> None:
        self.told: list[Decision] = []

    def member(self, address: str) -> Member | None:
        return None

    def remember(self, member: Member) -> None: ...

    def tell(self, decision: Decision) -> None:
        self.told.append(decision)


@asynccontextmanager
async def open_rig(handler: Handler, *, host_is: str = HOST, is_up: bool = True) -> AsyncIterator[Rig]:
    """A host that proves to be `host_is`, and a broker in front of it."""
    public = Authority.new()
    session = Authority.new()
    upstream = ssl.create_default_context(cadata=public.certificate)
    broker = Broker(lambda _member: session, lambda: upstream)
    desk = _Desk()
    guest = Guest(grants=(Grant(host=HOST, header="authorization", placeholder=WORD, value=VALUE),))
    dials: list[socket.socket] = []
    counted: list[tuple[int, int]] = []
    host = await asyncio.start_server(_closing(handler), "127.0.0.1", 0, ssl=public.context(host_is))
    address = host.sockets[0].getsockname()
    loop = asyncio.get_running_loop()

    async def dial() -> socket.socket:
        if not is_up:
            raise Unreachable("it cannot be reached")
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        furnish(sock)
        dials.append(sock)
        return sock

    async def serve(listener: socket.socket, group: asyncio.TaskGroup) -> None:
        while True:
            client, _ = await loop.sock_accept(listener)
            furnish(client)
            group.create_task(speak_for(client), name="broker")

    async def speak_for(client: socket.socket) -> None:
        with contextlib.closing(client), contextlib.suppress(Unreachable):
            first = await loop.sock_recv(client, 100)
            counted.append(await broker(client, first, HOST, guest, dial, desk))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        trust = ssl.create_default_context(cadata=session.certificate)
        async with host, asyncio.TaskGroup() as group:
            serving = group.create_task(serve(listener, group), name="accept")
            port = listener.getsockname()[1]
            yield Rig(port, trust, session.certificate, guest, desk.told, dials, counted)
            serving.cancel()
    for sock in dials:
        assert sock.fileno() == -1, "a connection outwards was left open"


def _closing(handler: Handler) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            await handle_fully(reader, writer)

    async def handle_fully(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    return handle
