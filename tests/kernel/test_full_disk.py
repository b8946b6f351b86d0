"""The store, the audit trail and the whole server on a disk that is really full."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.audit import Journal, records, verify
from k8e.client import Exhausted, SandboxClient
from k8e.egress.spares import Indices
from k8e.engine.store import Change, Store
from k8e.engine.transcript import Transcript
from k8e.engine.workspaces import WORKSPACES, WorkspaceView
from k8e.errors import DiskFull
from k8e.model import MIB, OwnerId, WorkspaceId
from k8e.setup.provision import Provisioned
from tests.support.servers import NO_POOL, Server
from tests.support.small_disks import small_disk as disk_for_a_server
from tests.support.small_disks import take_all

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def _workspace(name: str) -> Change:
    return WORKSPACES.put(
        WorkspaceView(
            owner=OwnerId("uid:0"), tenant=name, workspace=WorkspaceId(f"ws-{name}"), disk_bytes=1, last_used=0.0
        )
    )


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


async def test_a_full_disk_fails_the_caller_and_loses_nothing(small_disk: Path) -> None:
    store = Store(small_disk / "engine.sqlite")
    await store.commit(_workspace("before"))
    ballast = small_disk / "ballast"
    _fill(ballast)
    with pytest.raises(DiskFull, match="free space"):
        await store.commit(*(_workspace(f"{n}-{'x' * 1000}") for n in range(100)))
    ballast.unlink()
    await store.commit(_workspace("after"))
    assert {stored.record.tenant for stored in store.load(WORKSPACES)} == {"before", "after"}
    store.close()


async def test_a_commit_that_does_not_fit_fails_alone(small_disk: Path) -> None:
    store = Store(small_disk / "engine.sqlite")
    await store.commit(_workspace("before"))
    ballast = small_disk / "ballast"
    _fill(ballast)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 64 * 1024)
    with contextlib.closing(sqlite3.connect(small_disk / "engine.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # what is committed meanwhile shares a transaction
        large = asyncio.ensure_future(store.commit(*(_workspace(f"{n}-{'x' * 1000}") for n in range(100))))
        small = asyncio.ensure_future(store.commit(_workspace("small")))
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
    async with asyncio.timeout(60):
        with pytest.raises(DiskFull):
            await large
        await small
    assert {stored.record.tenant for stored in store.load(WORKSPACES)} == {"before", "small"}
    store.close()


async def test_versions_that_a_full_disk_did_not_keep_are_used_once(small_disk: Path) -> None:
    path, ballast = small_disk / "engine.sqlite", small_disk / "ballast"
    store = Store(path)
    _fill(ballast)
    with pytest.raises(DiskFull):
        await store.commit(*(_workspace(f"{n}-{'x' * 1000}") for n in range(100)))
    ballast.unlink()
    first = await store.commit(_workspace("a"))
    store.close()
    store = Store(path)
    assert await store.commit(_workspace("a")) > first
    store.close()


def test_a_full_disk_does_not_stop_the_audit_trail_for_good(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8e.audit.journal._RETRY_S", 0.05)
    journal = Journal(small_disk)
    journal.add({"n": -1})
    ballast = small_disk / "ballast"
    _fill(ballast)
    with caplog.at_level(logging.ERROR):
        for number in range(200):
            journal.add({"n": number, "padding": "x" * 200})
        deadline = time.monotonic() + 60
        while "THE AUDIT TRAIL CANNOT BE WRITTEN" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    ballast.unlink()
    journal.close()
    assert verify(small_disk).ok
    assert [record["n"] for record in records(small_disk)] == list(range(-1, 200))


def test_a_transcript_on_a_full_disk_leaves_out_whole_texts_and_goes_on_later(small_disk: Path) -> None:
    transcript = Transcript(small_disk / "session" / "transcript")
    transcript.append(b"before\n")
    ballast = small_disk / "ballast"
    _fill(ballast)
    transcript.append(b"lost\n" * 10_000)
    Transcript(small_disk / "another" / "transcript").append(b"lost\n" * 10_000)
    assert transcript.read(0).output == "before\n"
    assert Transcript(small_disk / "another" / "transcript").read(0).output == ""
    ballast.unlink()
    transcript.append(b"after\n")
    Transcript(small_disk / "another" / "transcript").append(b"first\n")
    assert transcript.read(0).output == "before\nafter\n"
    assert Transcript(small_disk / "another" / "transcript").read(0).output == "first\n"


def test_numbers_of_slots_that_a_full_disk_did_not_keep_are_not_given_out(small_disk: Path) -> None:
    file = small_disk / "next"
    first = Indices(file).take(frozenset())
    ballast = small_disk / "ballast"
    _fill(ballast)
    indices = Indices(file)
    with pytest.raises(OSError, match="No space left"):
        indices.take(frozenset())
    with pytest.raises(OSError, match="No space left"):
        indices.take(frozenset())
    ballast.unlink()
    taken = indices.take(frozenset())
    assert taken != first
    assert Indices(file).take(frozenset()) not in {first, taken}


@pytest.fixture
def full_server(data_dir: Path, host: Provisioned) -> Iterator[Server]:
    """A server with a disk of its own, which tests fill."""
    with disk_for_a_server(data_dir, 600 * MIB) as place:
        server = Server(place, *NO_POOL, "--default-runtime", "container", "--reserve-disk", "50Mi")
        server.start()
        try:
            yield server
        finally:
            (place / "ballast").unlink(missing_ok=True)
            server.destroy()


def test_on_a_full_disk_commands_run_and_what_cannot_be_done_is_told(full_server: Server) -> None:
    with SandboxClient(target=full_server.target()) as client:
        session = client.create_session()
        ballast = take_all(full_server.data_dir)
        assert client.run("echo hello", session_id=session).stdout == "hello\n"
        for tenant in ("", "new"):
            with pytest.raises(Exhausted, match=f"free space on the disk of {full_server.data_dir}"):
                client.create_session(tenant_id=tenant)
        ballast.unlink()
        client.create_session()
        assert client.run("echo again", session_id=session).stdout == "again\n"


def test_on_a_full_disk_sessions_can_be_destroyed(full_server: Server) -> None:
    with SandboxClient(target=full_server.target()) as client:
        sessions = [client.create_session() for _ in range(2)]
        take_all(full_server.data_dir)
        for session in sessions:
            client.destroy_session(session)
        assert not client.sessions()
        assert not list((full_server.data_dir / "sandboxes").iterdir())


def test_a_server_starts_on_a_full_disk_so_that_room_can_be_made(full_server: Server) -> None:
    with SandboxClient(target=full_server.target()) as client:
        session = client.create_session()
    full_server.stop()
    take_all(full_server.data_dir)
    full_server.start()
    with SandboxClient(target=full_server.target()) as client:
        assert client.run("echo hello", session_id=session).stdout == "hello\n"
        client.destroy_session(session)
        (full_server.data_dir / "ballast").unlink()
        client.create_session()
