"""The store on a disk that is really full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8e.engine.store import Change, Store
from k8e.errors import StoreFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def _workspace(name: str) -> Change:
    return Change("INSERT INTO workspaces VALUES (?,?,?,?,?)", ("uid:0", name, f"ws-{name}", 1, 0.0))


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
