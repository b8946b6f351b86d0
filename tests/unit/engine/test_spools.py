"""Content that waits for a decision: whole, known by its digest, bounded, and gone afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from k8e.engine.spools import Spools
from k8e.errors import Exhausted, StoreFailed
from k8e.model import OwnerId

pytestmark = pytest.mark.anyio

ALICE, BOB = OwnerId("uid:1000"), OwnerId("uid:1001")


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


@pytest.mark.parametrize("size", [0, 1, 2**20, 3 * 2**20 + 1])
async def test_what_is_held_comes_back_as_it_was_as_often_as_it_is_read(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with Spools(tmp_path).hold(ALICE, pieces(content[:100], content[100:])) as held:
        assert (held.size, held.sha256) == (size, hashlib.sha256(content).hexdigest())
        for _ in range(2):
            assert b"".join([chunk async for chunk in held.chunks()]) == content
        assert not list(tmp_path.iterdir()), "it has no name"


async def test_an_owner_holds_only_so_much_at_a_time_and_others_are_not_concerned(tmp_path: Path) -> None:
    spools = Spools(tmp_path, per_owner_bytes=10)
    async with spools.hold(ALICE, pieces(b"123456")):
        with pytest.raises(Exhausted, match="10 bytes"):
            async with spools.hold(ALICE, pieces(b"123", b"45")):
                pass
        async with spools.hold(ALICE, pieces(b"1234")), spools.hold(BOB, pieces(b"1234567890")):
            pass
    async with spools.hold(ALICE, pieces(b"1234567890")) as held:
        assert held.size == 10


async def test_a_disk_that_cannot_hold_it_is_the_servers_trouble(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="approved"):
        async with Spools(tmp_path / "missing").hold(ALICE, pieces(b"x" * 2**20, b"x" * 2**20)):
            pass
    async with Spools(tmp_path).hold(ALICE, pieces(b"x" * 2**20, b"x" * 2**20)) as held:
        assert held.size == 2**21
