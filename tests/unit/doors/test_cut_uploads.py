"""A file whose sender goes away in the middle never appears, whichever door it came through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e._proto import sandbox_pb2 as pb
from k8e.client import AsyncSandboxClient, NotFound
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
