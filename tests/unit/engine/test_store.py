"""The store keeps what it was given, shares commits, and says clearly what is wrong with its file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from k8e.engine.store import ENGINE_SCHEMA, Change, Store
from k8e.errors import StoreFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def _workspace(name: str) -> Change:
    return Change("INSERT INTO workspaces VALUES (?,?,?,?,?,?)", ("uid:0", name, f"ws-{name}", 1, 0.0, "{}"))


async def test_a_commit_is_there_after_a_restart(path: Path) -> None:
    first = Store(path)
    await first.commit(_workspace("a"))
    first.close()
    second = Store(path)
    assert [row["tenant"] for row in second.rows("SELECT * FROM workspaces")] == ["a"]
    second.close()


async def test_one_bad_change_fails_alone_among_many(store: Store) -> None:
    failures: list[str] = []

    async def commit(change: Change) -> None:
        try:
            await store.commit(change)
        except StoreFailed as error:
            failures.append(str(error))

    async with anyio.create_task_group() as group:
        for name in ["a", "b", "a", "c"]:
            group.start_soon(commit, _workspace(name))
    assert len(failures) == 1
    assert {row["tenant"] for row in store.rows("SELECT tenant FROM workspaces")} == {"a", "b", "c"}


async def test_changes_of_one_commit_come_together_or_not_at_all(store: Store) -> None:
    with pytest.raises(StoreFailed):
        await store.commit(_workspace("x"), Change("INSERT INTO nowhere VALUES (1)"))
    assert store.rows("SELECT * FROM workspaces") == []


async def test_posted_changes_are_written_before_close(path: Path) -> None:
    store = Store(path)
    store.post(_workspace("later"))
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT tenant FROM workspaces").fetchall() == [("later",)]
    db.close()


async def test_a_damaged_file_is_named_with_the_remedy(path: Path) -> None:
    path.write_bytes(b"this is no database at all, but long enough to look at" * 100)
    with pytest.raises(StoreFailed, match=r"damaged.*restore it from a backup"):
        Store(path)


async def test_a_locked_file_is_named_with_the_remedy(store: Store, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreFailed, match="locked by another program"):
        await store.commit(_workspace("a"))
    other.execute("ROLLBACK")
    other.close()
    await store.commit(_workspace("a"))


async def test_a_newer_format_is_refused_untouched(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreFailed, match="format 99"):
        Store(path)


@pytest.mark.parametrize("format", range(1, len(ENGINE_SCHEMA) + 1))
async def test_a_file_of_every_former_format_is_taken_over_with_what_is_in_it(path: Path, format: int) -> None:
    former = Store(path, schema=ENGINE_SCHEMA[:format])
    insert = "INSERT INTO workspaces (owner, tenant, id, disk_bytes, last_used) VALUES ('uid:0', 'kept', 'ws', 1, 0)"
    await former.commit(Change(insert))
    former.close()
    store = Store(path)
    assert [(row["tenant"], row["gates"]) for row in store.rows("SELECT * FROM workspaces")] == [("kept", "{}")]
    await store.commit(_workspace("new"))
    store.close()
    with pytest.raises(StoreFailed, match="run the k8e that wrote it"):
        Store(path, schema=ENGINE_SCHEMA[:-1])
