"""Connections to ports inside a sandbox, one a call. A call that is cancelled hangs up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from k8e._proto import sandbox_pb2 as pb
from k8e.doors.service import fields
from k8e.doors.service.call import Call
from k8e.engine.engine import Engine
from k8e.engine.ports import PortConnection
from k8e.errors import Conflict, InvalidSpec, SandboxFailed

__all__ = ["PortRpcs"]


class PortRpcs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def OpenPort(self, call: Call, inputs: AsyncIterator[pb.PortInput]) -> None:
        first = await anext(inputs, None)
        if first is None or first.WhichOneof("input") != "start":
            raise InvalidSpec("must be the first message", field="start")
        session_id = fields.session_id(first.start.session_id, "start.session_id")
        connection = await self._engine.open_port(call.owner, session_id, fields.port(first.start.port, "start.port"))
        try:
            await call.write(pb.PortOutput(connected=pb.PortConnected()))
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(feed(connection, inputs), name=f"input of port {connection.port}")
                async for piece in connection:
                    await call.write(pb.PortOutput(data=piece))
                await call.write(pb.PortOutput(eof=True))
                await connection.ended()
                feeding.cancel()
        finally:
            await connection.close()


async def feed(connection: PortConnection, inputs: AsyncIterator[pb.PortInput]) -> None:
    """Pass on what the caller sends, as long as there is a connection: of its end the output tells."""
    with contextlib.suppress(Conflict, SandboxFailed):
        async for message in inputs:
            match message.WhichOneof("input"):
                case "data":
                    await connection.send(message.data)
                case "eof":
                    break
                case other:
                    raise InvalidSpec("may come only once, as the first message", field=other or "input")
        # The end of the caller's messages is the end of what it sends.
        await connection.send_eof()
        async for message in inputs:
            raise InvalidSpec("comes after eof", field=message.WhichOneof("input") or "input")
