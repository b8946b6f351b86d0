"""How a client is held at the server, and what is done when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.client.errors import (
    Conflict,
    Denied,
    Exhausted,
    SandboxError,
    ServerFailed,
    Unauthenticated,
    Unreachable,
    Unsupported,
)
from k8e.identity.callers import Role
from k8e.web.guests import Guests, Kind
from k8e.web.lease import RETRY_MOST_S, RETRY_S, hold, next_pause_s
from k8e.web.presence import Patience
from k8e.web.visitors import Visitors
from tests.support.agents_door import nobody_comes_back
from tests.support.door import OpenDoor, open_door

pytestmark = pytest.mark.anyio


class Refusing:
    """A server that refuses a client in the given ways, and then holds it."""

    def __init__(self, *errors: SandboxError) -> None:
        self._errors = list(errors)
        self.asked = 0
        self.is_held = asyncio.Event()

    async def lines(self, client_id: str, said: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        self.is_held.set()
        async for line in said:
            yield line


@pytest.mark.parametrize("error", [Denied("not you"), Unauthenticated("who?")])
async def test_a_server_that_does_not_want_a_client_is_not_asked_again(error: SandboxError) -> None:
    server, lost = Refusing(error), Lost()
    await hold(server, "client", asyncio.Event(), lost)
    assert (server.asked, lost.count) == (1, 0)


@pytest.mark.parametrize(
    ("error", "losses"),
    [
        (Unreachable("gone"), 1),
        (ServerFailed("oh"), 1),
        (Conflict("stopping"), 1),
        (Exhausted("full"), 0),
        (Unsupported("cannot"), 0),
    ],
)
async def test_only_a_server_that_goes_away_is_lost(
    error: SandboxError, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.web.lease.RETRY_S", 0.0)
    server, lost, ended = Refusing(error), Lost(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(server, "client", ended, lost), name="lease")
        async with asyncio.timeout(60):
            await server.is_held.wait()
        ended.set()
    assert (server.asked, lost.count) == (2, losses)


class Lost:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1


def test_a_server_without_room_is_asked_ever_more_seldom() -> None:
    full, pauses = Exhausted("full"), [0.0]
    for _ in range(10):
        pauses.append(next_pause_s(full, pauses[-1]))
    assert pauses[1:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert pauses[-1] == RETRY_MOST_S
    assert next_pause_s(Unreachable("gone"), pauses[-1]) == RETRY_S
    full.retry_after_s = 100.0
    assert next_pause_s(full, RETRY_S) == 100.0


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(tmp_path, mcp_grace_s=0) as door:
        yield door


async def test_a_guest_whom_the_server_does_not_want_ends(door: OpenDoor) -> None:
    """Its key was deleted between its recognition and its first call."""
    async with (
        Visitors.open(door.target, nobody_comes_back) as visitors,
        Guests.open(Patience(), "", visitors) as guests,
    ):
        _, kept = door.keys.create("kept", role=Role.USER, owner="", ttl_s=0)
        _, deleted = door.keys.create("deleted", role=Role.USER, owner="", ttl_s=0)
        welcome = await guests.arrive(await visitors.with_key(kept), Kind.PLAIN)
        visitor = await visitors.with_key(deleted)
        door.keys.delete("deleted")
        unwelcome = await guests.arrive(visitor, Kind.PLAIN)
        async with asyncio.timeout(60):
            await unwelcome.is_ended.wait()
        assert not welcome.is_ended.is_set()
