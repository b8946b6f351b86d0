"""A file whose sender goes away in the middle never appears, whichever door it came through."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.client import AsyncSandboxClient, NotFound
from k8e.doors.grpc import handlers
from tests.support.connect import connect_door
from tests.support.door import open_door

pytestmark = pytest.mark.anyio

TURNS = 50


async def test_a_call_that_is_cancelled_in_the_middle_leaves_no_file(data_dir: Path) -> None:
    async with (
        open_door(data_dir) as door,
        AsyncSandboxClient(target=door.target) as client,
        await client.create() as session,
    ):
        for turn in range(TURNS):
            sent = asyncio.Event()

            async def pieces(
                sent: asyncio.Event = sent, path: str = f"cut-{turn}"
            ) -> AsyncIterator[pb.WriteStreamRequest]:
                yield pb.WriteStreamRequest(open=pb.WriteStreamOpen(session_id=session.session_id, path=path))
                yield pb.WriteStreamRequest(data=b"x" * 100_000)
                sent.set()
                await asyncio.Event().wait()

            call = client._stub.WriteStream(pieces())
            await sent.wait()
            call.cancel()
        # The control: the same pieces with an end make a file; and by then the others have been dealt with.
        assert await session.files.write("whole", b"x" * 3_000_000) == 3_000_000
        assert [entry.path for entry in await session.files.list()] == ["/workspace/whole"]
        with pytest.raises(NotFound):
            await session.files.stat("cut-0")


async def test_a_connection_to_the_json_door_that_ends_in_the_middle_leaves_no_file(data_dir: Path) -> None:
    async with connect_door(data_dir) as door:
        async with door.wire() as wire:
            session_id = (await wire.ask("CreateSession", {})).json["session_id"]
        data = {"data": base64.b64encode(b"x" * 100_000).decode()}
        for turn in range(TURNS):
            async with door.wire() as wire:
                await wire.open_stream("WriteStream")
                await wire.send({"open": {"session_id": session_id, "path": f"cut-{turn}"}})
                await wire.send(data)
        async with door.wire() as wire:
            opening = {"open": {"session_id": session_id, "path": "whole"}}
            (written,) = (await wire.ask_stream("WriteStream", opening, *[data] * 20)).messages
            assert int(written["size"]) == 2_000_000
            listed = (await wire.ask("ListFiles", {"session_id": session_id})).json
            assert [entry["path"] for entry in listed["files"]] == ["/workspace/whole"]


async def test_a_command_whose_caller_goes_away_reads_no_end_of_input(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is: word that a caller is gone never comes so late that its end is taken for a meant one.
    monkeypatch.setattr(handlers, "CUT_S", 60.0)
    async with (
        open_door(data_dir) as door,
        AsyncSandboxClient(target=door.target) as client,
        await client.create() as session,
    ):
        for turn in range(TURNS):
            async with await session.process(f"cat > /dev/null; touch ended-{turn}") as process:
                await process.stdin.write("half a li")
        # The control: an end that is meant is read.
        await session.exec("cat > /dev/null; touch ended-well", stdin=b"a line\n")
        assert [entry.path for entry in await session.files.list()] == ["/workspace/ended-well"]
