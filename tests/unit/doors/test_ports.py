"""Connections to ports through both doors: the same messages, the same refusals, the same back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from google.protobuf import json_format
from grpc import aio

from k8e._proto import sandbox_pb2 as pb
from k8e._proto.stub import SandboxStub
from k8e.client.channels import open_channel
from k8e.doors.service.auditing import Auditing
from k8e.model import SessionSpec
from tests.support.cells import OWNER
from tests.support.connect import ConnectDoor, Wire, connect_door
from tests.support.servers_inside import ECHO, GREET_THEN_LISTEN, NEVER_READ, POUR, RESET, TELL_END, serve, settled

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SLACK = 32 * 1024 * 1024
"""More than every buffer on the way has room for: kernel, HTTP, doors, agent."""
START = pb.PortInput(start=pb.PortStart(session_id="s", port=80))


class Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class Exchange(Protocol):
    """One call of OpenPort, whichever protocol carries it."""

    async def send(self, message: pb.PortInput) -> None: ...
    async def finish(self) -> None: ...
    async def receive(self) -> pb.PortOutput | None:
        """The next answer, or nothing at a good end. Raises: Refused."""
        ...

    async def leave(self) -> None: ...


class GrpcExchange:
    def __init__(self, stub: SandboxStub) -> None:
        self._call: Any = stub.OpenPort()  # without requests they are written one by one

    async def send(self, message: pb.PortInput) -> None:
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):  # the answer says why
            await self._call.write(message)

    async def finish(self) -> None:
        await self._call.done_writing()

    async def receive(self) -> pb.PortOutput | None:
        try:
            answer = await self._call.read()
        except aio.AioRpcError as error:
            raise Refused(error.code().name.lower(), error.details() or "") from error
        return None if answer is aio.EOF else answer

    async def leave(self) -> None:
        self._call.cancel()


class JsonExchange:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._has_begun = False
        self._has_head = False

    async def send(self, message: pb.PortInput) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._wire.open_stream("OpenPort")
        with contextlib.suppress(ConnectionError):  # the answer says why
            await self._wire.send(json_format.MessageToDict(message, preserving_proto_field_name=True))

    async def finish(self) -> None:
        await self._wire.finish()

    async def receive(self) -> pb.PortOutput | None:
        if not self._has_head:
            self._has_head = True
            assert (await self._wire.head())[0] == 200
        data = await self._wire.chunk()
        body = json.loads(data[5:])
        if not data[0]:
            return json_format.ParseDict(body, pb.PortOutput())
        if "error" in body:
            raise Refused(body["error"]["code"], body["error"]["message"])
        return None

    async def leave(self) -> None:
        self._wire.writer.transport.abort()


class Kept:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, fields: Any) -> None:
        self.records.append(dict(fields))


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def door(data_dir: Path, kept: Kept) -> AsyncIterator[ConnectDoor]:
    async with connect_door(data_dir, steps=[Auditing(kept)]) as door:
        yield door


@pytest.fixture
async def session_id(door: ConnectDoor) -> str:
    return (await door.door.engine.create_session(OWNER, SessionSpec())).session_id


@pytest.fixture(params=["grpc", "json"])
async def exchange(request: pytest.FixtureRequest, door: ConnectDoor) -> AsyncIterator[Exchange]:
    async with AsyncExitStack() as stack:
        if request.param == "grpc":
            channel = await stack.enter_async_context(open_channel(door.door.target))
            made: Exchange = GrpcExchange(SandboxStub(channel))
        else:
            made = JsonExchange(await stack.enter_async_context(door.wire()))
        async with asyncio.timeout(2 * PATIENCE_S):
            yield made
        await made.leave()


async def connected(exchange: Exchange, door: ConnectDoor, session_id: str, body: str) -> int:
    port = await serve(door.door.engine, session_id, body)
    await exchange.send(pb.PortInput(start=pb.PortStart(session_id=session_id, port=port)))
    answer = await exchange.receive()
    assert answer is not None
    assert answer.WhichOneof("output") == "connected"
    return port


async def received(exchange: Exchange) -> bytes:
    """Everything until the server's end of file."""
    pieces = []
    while (answer := await exchange.receive()) is not None and not answer.eof:
        pieces.append(answer.data)
    assert answer is not None, "it ended without eof"
    return b"".join(pieces)


async def send(exchange: Exchange, content: bytes, piece: int = 100_000) -> None:
    for at in range(0, len(content), piece):
        await exchange.send(pb.PortInput(data=content[at : at + piece]))
    await exchange.send(pb.PortInput(eof=True))


async def refusal(exchange: Exchange) -> Refused:
    async def all_of_it() -> None:
        while await exchange.receive() is not None:
            pass

    with pytest.raises(Refused) as refused:
        await all_of_it()
    return refused.value


async def test_every_byte_goes_both_ways_and_the_end_is_a_good_one(
    exchange: Exchange, door: ConnectDoor, session_id: str
) -> None:
    content = os.urandom(3 * 1024 * 1024 + 1)
    await connected(exchange, door, session_id, ECHO)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(received(exchange), name="receive")
        await send(exchange, content)
    assert reading.result() == content
    assert await exchange.receive() is None


async def test_the_end_of_the_callers_messages_is_its_end_of_file(
    exchange: Exchange, door: ConnectDoor, session_id: str
) -> None:
    await connected(exchange, door, session_id, ECHO)
    await exchange.send(pb.PortInput(data=b"all"))
    await exchange.finish()
    assert await received(exchange) == b"all"
    assert await exchange.receive() is None


async def test_after_the_servers_end_the_caller_may_go_on(
    exchange: Exchange, door: ConnectDoor, session_id: str, kept: Kept
) -> None:
    port = await connected(exchange, door, session_id, GREET_THEN_LISTEN)
    assert await received(exchange) == b"all I have"
    await send(exchange, b"still talking")
    assert await exchange.receive() is None
    assert await content_of(door, session_id, "heard") == b"still talking"
    record = kept.records[-1]
    assert (record["rpc"], record["session_id"], record["port"], record["outcome"]) == (
        "OpenPort",
        session_id,
        port,
        "OK",
    )
    assert "still talking" not in json.dumps(kept.records)


async def test_a_reset_inside_is_an_error_of_the_call(exchange: Exchange, door: ConnectDoor, session_id: str) -> None:
    await connected(exchange, door, session_id, RESET)
    await exchange.send(pb.PortInput(data=b"x"))
    refused = await refusal(exchange)
    assert refused.code == "aborted"
    assert "inside has closed the connection" in refused.text


async def test_a_port_where_nobody_listens_is_refused_with_what_to_do(exchange: Exchange, session_id: str) -> None:
    await exchange.send(pb.PortInput(start=pb.PortStart(session_id=session_id, port=9)))
    refused = await refusal(exchange)
    assert refused.code == "aborted"
    assert "nothing listens on port 9 inside: start the server first" in refused.text


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([pb.PortInput(start=pb.PortStart(port=80))], "invalid_argument", "start.session_id: is required"),
        ([pb.PortInput(start=pb.PortStart(session_id="s"))], "invalid_argument", "start.port: must be 1-65535"),
        ([pb.PortInput(start=pb.PortStart(session_id="s", port=-1))], "invalid_argument", "start.port: must be"),
        ([pb.PortInput(start=pb.PortStart(session_id="s", port=65536))], "invalid_argument", "start.port: must be"),
        ([pb.PortInput(data=b"x")], "invalid_argument", "start: must be the first message"),
        ([pb.PortInput()], "invalid_argument", "start: must be the first message"),
        ([START], "not_found", "session s not found"),
    ],
    ids=str,
)
async def test_a_bad_beginning_is_refused(
    exchange: Exchange, messages: list[pb.PortInput], code: str, text: str
) -> None:
    for message in messages:
        await exchange.send(message)
    refused = await refusal(exchange)
    assert refused.code == code
    assert text in refused.text


@pytest.mark.parametrize(
    "later", [[START], [pb.PortInput()], [pb.PortInput(eof=True), pb.PortInput(data=b"x")]], ids=str
)
async def test_a_bad_message_later_ends_the_call(
    exchange: Exchange, door: ConnectDoor, session_id: str, later: list[pb.PortInput]
) -> None:
    await connected(exchange, door, session_id, NEVER_READ)
    for message in later:
        await exchange.send(message)
    assert (await refusal(exchange)).code == "invalid_argument"


async def test_a_caller_that_leaves_hangs_up_inside(exchange: Exchange, door: ConnectDoor, session_id: str) -> None:
    await connected(exchange, door, session_id, TELL_END)
    assert (await exchange.receive()) == pb.PortOutput(data=b"hello")
    await exchange.leave()
    assert await content_of(door, session_id, "end") == b"reset"


async def test_a_server_that_does_not_read_stops_the_caller(
    exchange: Exchange, door: ConnectDoor, session_id: str
) -> None:
    await connected(exchange, door, session_id, NEVER_READ)
    sent = 0

    async def send() -> None:
        nonlocal sent
        while sent < 2 * SLACK:
            await exchange.send(pb.PortInput(data=bytes(100_000)))
            sent += 100_000
        await exchange.send(pb.PortInput(eof=True))

    async with asyncio.TaskGroup() as group:
        group.create_task(send(), name="send")
        assert await settled(lambda: sent) < SLACK
        await door.door.engine.make_directory(OWNER, session_id, "may-read")
        assert int(await received(exchange)) == sent


async def test_a_caller_that_does_not_read_stops_the_server(
    exchange: Exchange, door: ConnectDoor, session_id: str
) -> None:
    await connected(exchange, door, session_id, POUR.format(size=2 * SLACK))
    seen, sent = -1, int(await content_of(door, session_id, "sent"))
    while seen != sent:
        await asyncio.sleep(0.5)
        seen, sent = sent, int(await content_of(door, session_id, "sent"))
    assert sent < SLACK
    assert len(await received(exchange)) == 2 * SLACK


async def content_of(door: ConnectDoor, session_id: str, path: str) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await door.door.engine.list_files(OWNER, session_id, "/workspace")
            if any(each.path == f"/workspace/{path}" for each in found.entries):
                return b"".join([each async for each in door.door.engine.read_file(OWNER, session_id, path)])
            await asyncio.sleep(0.02)
