"""Work in the background that outlives its own failures."""

from __future__ import annotations

import asyncio
import logging

import pytest

from k8e.errors import StoreFailed
from k8e.tasks import Tasks

pytestmark = pytest.mark.anyio


async def test_what_is_done_again_and_again_goes_on_whatever_a_round_meets(caplog: pytest.LogCaptureFixture) -> None:
    met = [StoreFailed("the disk is full"), OSError("too many open files"), ValueError("a mistake of ours")]
    is_done = asyncio.Event()

    async def work() -> None:
        if met:
            raise met.pop(0)
        is_done.set()

    with caplog.at_level(logging.WARNING):
        async with Tasks() as tasks:
            tasks.repeat(work, every_s=0.001, name="tending")
            async with asyncio.timeout(60):
                await is_done.wait()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert [bool(record.exc_info) for record in caplog.records] == [False, False, True]
