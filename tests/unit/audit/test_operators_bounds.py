"""The two trails of a server stay within what the operator gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from k8e import server
from k8e._proto import sandbox_pb2 as pb
from k8e.audit import BUSY, MAIN, records, verify
from k8e.settings import ServerSettings
from tests.support.calls import as_uid

pytestmark = pytest.mark.anyio

CALLS = 6000


async def done(settings: ServerSettings) -> None:
    async with server.trail(settings, server.Stop()) as auditing:
        for number in range(CALLS):
            with auditing("Exec", as_uid(1), pb.ExecRequest(session_id=f"s{number}")):
                await asyncio.sleep(0)


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.jsonl"))


async def test_trails_take_no_more_of_the_disk_than_the_operator_gives_them(tmp_path: Path) -> None:
    small = ServerSettings(data_dir=tmp_path / "small", kept_audit=2**20, audit_records_per_owner=100_000)
    usual = ServerSettings(data_dir=tmp_path / "usual", audit_records_per_owner=100_000)
    for settings in (small, usual):
        await done(settings)
        assert verify(settings.data_dir).ok
    # One more file than fits is begun before the oldest goes.
    assert size(small.data_dir / MAIN) < 2**20 // 2 * 1.1
    assert size(usual.data_dir / MAIN) > 2**20
    newest = [each["session_id"] for each in records(small.data_dir) if "session_id" in each][-1]
    assert newest == f"s{CALLS - 1}"


async def test_an_owner_has_as_many_records_among_everybodys_as_the_operator_says(tmp_path: Path) -> None:
    await done(ServerSettings(data_dir=tmp_path, audit_records_per_owner=40))
    files = (tmp_path / MAIN).glob("*.jsonl")
    assert sum(path.read_bytes().count(b'"Exec"') for path in files) == 40
    files = (tmp_path / BUSY).glob("*.jsonl")
    assert sum(path.read_bytes().count(b'"Exec"') for path in files) == CALLS - 40
