"""Who is recognized, who waits for whom, and when a server is brought back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from k8e.client.errors import Unauthenticated, Unreachable
from k8e.identity.callers import Role
from k8e.web.visitors import Visitors
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio


class Reviver:
    """Somebody who cannot bring the server back, and takes as long as the test wants to find out."""

    def __init__(self) -> None:
        self.count = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self) -> bool:
        self.count += 1
        self.is_asked.set()
        await self.may_answer.wait()
        return False


def key(door: OpenDoor, name: str) -> str:
    _, text = door.keys.create(name, role=Role.USER, owner="", ttl_s=0)
    return text


async def test_a_known_key_does_not_wait_behind_unknown_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8e.web.visitors.ASKING", 1)
    monkeypatch.setattr("k8e.web.visitors.KNOWN_S", 3600.0)
    revive = Reviver()
    async with contextlib.AsyncExitStack() as living:
        door = await living.enter_async_context(open_door(tmp_path))
        async with Visitors.open(door.target, revive) as visitors, asyncio.TaskGroup() as group:
            text = key(door, "laptop")
            first = await visitors.with_key(text)
            await living.aclose()
            revive.is_asked.clear()
            revive.may_answer.clear()
            stranger = group.create_task(refused(visitors, "nobody's"), name="stranger")
            await revive.is_asked.wait()
            async with asyncio.timeout(60):
                assert await visitors.with_key(text) == first
            assert not stranger.done()
            revive.may_answer.set()
            assert isinstance(await stranger, Unreachable)


async def refused(visitors: Visitors, text: str) -> Exception | None:
    try:
        await visitors.with_key(text)
    except (Unauthenticated, Unreachable) as error:
        return error
    return None


async def test_a_server_is_brought_back_only_where_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.visitors.KNOWN_S", 0.0)
    monkeypatch.setattr("k8e.web.visitors.ANSWER_S", 60.0)  # a busy machine's server is slow, and still there
    revive = Reviver()
    async with open_door(tmp_path) as door, Visitors.open(door.target, revive) as visitors:
        text = key(door, "laptop")
        for _ in range(3):
            assert (await visitors.with_key(text)).identity == "key:laptop"
            assert isinstance(await refused(visitors, "nobody's"), Unauthenticated)
        assert revive.count == 0
        await visitors.lost(is_waited_for=False)
        assert revive.count == 0
        await visitors.with_key(text)
        assert revive.count == 1
        await visitors.lost(is_waited_for=True)
        assert revive.count == 2
