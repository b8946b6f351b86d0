"""The store and the audit trail on a disk that is really full."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.audit import Journal, records, verify
from k8e.engine.store import Change, Store
from k8e.errors import StoreFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def _workspace(name: str) -> Change:
    return Change("INSERT INTO workspaces VALUES (?,?,?,?,?,?)", ("uid:0", name, f"ws-{name}", 1, 0.0, "{}"))


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


async def test_a_full_disk_fails_the_caller_and_loses_nothing(small_disk: Path) -> None:
    store = Store(small_disk / "engine.sqlite")
    await store.commit(_workspace("before"))
    ballast = small_disk / "ballast"
    _fill(ballast)
    with pytest.raises(StoreFailed, match="free space"):
        await store.commit(*(_workspace(f"{n}-{'x' * 1000}") for n in range(100)))
    ballast.unlink()
    await store.commit(_workspace("after"))
    assert {row["tenant"] for row in store.rows("SELECT tenant FROM workspaces")} == {"before", "after"}
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
