"""The engine's memory: one SQLite file, one writer thread, group commit.

A change is durable before the caller's `await` returns. Changes that arrive while the disk is busy share the
next transaction, so a burst of claims costs a handful of commits. Reading happens once, at start: afterwards
the engine's own objects are the truth and the file follows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from k8e import full_disk
from k8e.errors import DiskFull, StoreFailed

__all__ = ["ENGINE_SCHEMA", "Change", "Store"]

_log = logging.getLogger(__name__)

ENGINE_SCHEMA: Final = (
    """
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY, runtime TEXT NOT NULL, image TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    disk_bytes INTEGER NOT NULL, phase TEXT NOT NULL, created_at REAL NOT NULL) STRICT;
CREATE TABLE sessions (
    owner TEXT NOT NULL, session_id TEXT NOT NULL, sandbox TEXT NOT NULL, phase TEXT NOT NULL, spec TEXT NOT NULL,
    parent TEXT NOT NULL, workspace TEXT NOT NULL, warm INTEGER NOT NULL, detail TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, idle_timeout_s REAL NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (owner, session_id)) STRICT;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, started_at REAL NOT NULL,
    outcome TEXT NOT NULL, truncated INTEGER NOT NULL) STRICT;
CREATE TABLE terminals (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, pid INTEGER NOT NULL) STRICT;
CREATE TABLE workspaces (
    owner TEXT NOT NULL, tenant TEXT NOT NULL, id TEXT NOT NULL, disk_bytes INTEGER NOT NULL, last_used REAL NOT NULL,
    PRIMARY KEY (owner, tenant)) STRICT;
""",
    "ALTER TABLE workspaces ADD COLUMN gates TEXT NOT NULL DEFAULT '{}';",
    "ALTER TABLE runs ADD COLUMN command TEXT NOT NULL DEFAULT '';",
    "DROP TABLE sandboxes;",  # what is kept warm is the substrate's to know
    """
ALTER TABLE sessions ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
""",
)
_BUSY_MS: Final = 2000
_MAX_GROUP: Final = 256
RETRY_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Between the tries of `commit_retrying`."""


@dataclass(frozen=True, slots=True)
class Change:
    """One SQL statement with its values."""

    sql: str
    values: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class _Commit:
    changes: Sequence[Change]
    done: asyncio.Future[None] | None


class Store:
    """Opened once per server; `close` waits for everything handed in before."""

    def __init__(
        self,
        path: Path,
        *,
        schema: Sequence[str] = ENGINE_SCHEMA,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        linger_s: float = 0.0,
    ) -> None:
        """Open or create the file. Raises: StoreFailed, with the remedy in the text.

        `schema` begins with the first format that ever was, and goes on with what made the next one of it, each time:
        a file of any of them is taken over and has the last one from then on.

        NORMAL survives any crash of ours; FULL also keeps the last moments before a power loss. Changes that nobody
        waits for may linger for a moment, so that one transaction takes many of them.
        """
        self._linger_s = linger_s
        self._path = path
        self._queue: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        # The files that SQLite puts beside it take over its mode, so it is there before SQLite looks.
        with contextlib.suppress(OSError):  # which SQLite then explains
            path.touch(mode=0o600)
        self._db = self._connect(schema, synchronous)
        self._reader = self._open()
        self._thread = threading.Thread(target=self._write, name="store writer", daemon=True)
        self._thread.start()

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """Read what is committed, on a connection of its own so that a transaction in progress is never seen."""
        try:
            return self._reader.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def each(self, sql: str, values: tuple[object, ...] = ()) -> Iterator[sqlite3.Row]:
        """The same, one row at a time: for whoever may stop before the last."""
        try:
            yield from self._reader.execute(sql, values)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    async def commit(self, *changes: Change) -> None:
        """Make the changes durable, all or none. Raises: StoreFailed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(_Commit(changes, done))
        await done

    async def commit_retrying(self, *changes: Change) -> None:
        """The same, tried for some seconds: a database is locked, or a disk full, often only for a while."""
        for pause_s in RETRY_PAUSES_S:
            with contextlib.suppress(StoreFailed):
                return await self.commit(*changes)
            await asyncio.sleep(pause_s)
        return await self.commit(*changes)

    def post(self, *changes: Change) -> None:
        """Hand in changes without waiting; a failure is logged."""
        self._queue.put(_Commit(changes, None))

    def close(self) -> None:
        """Finish what was handed in, then close the file."""
        self._hurry.set()
        self._queue.put(None)
        self._thread.join()
        self._reader.close()
        self._db.close()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000)
        db.row_factory = sqlite3.Row
        return db

    def _connect(self, schema: Sequence[str], synchronous: str) -> sqlite3.Connection:
        try:
            db = self._open()
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={synchronous}")
            self._migrate(db, schema)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return db

    def _migrate(self, db: sqlite3.Connection, schema: Sequence[str]) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(schema):
            raise StoreFailed(
                f"{self._path} has format {version}, this k8e reads {len(schema)}: run the k8e that wrote it"
            )
        if version < len(schema):
            # One transaction: killed half-way, the file is as it was.
            script = " ".join(schema[version:])
            db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version={len(schema)}; COMMIT;")
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreFailed(self._damaged(verdict))

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            if self._linger_s and first.done is None:
                self._hurry.wait(self._linger_s)
            group = [first]
            closing = False
            while len(group) < _MAX_GROUP and not self._queue.empty():
                commit = self._queue.get()
                if commit is None:
                    closing = True
                    break
                group.append(commit)
            self._write_group(group)
            if closing:
                return

    def _write_group(self, group: Sequence[_Commit]) -> None:
        error = self._transact([change for commit in group for change in commit.changes])
        if error is not None and len(group) > 1:
            # One bad change must fail its own caller, not the neighbours it shared a transaction with.
            for commit in group:
                self._write_group([commit])
            return
        failure = self._failure(error) if error is not None else None
        for commit in group:
            if commit.done is not None:
                commit.done.get_loop().call_soon_threadsafe(_settle, commit.done, failure)
            elif failure is not None:
                _log.error("a change was not written down", extra={"error": str(failure)})

    def _transact(self, changes: Sequence[Change]) -> sqlite3.Error | None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for change in changes:
                self._db.execute(change.sql, change.values)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            return error
        return None

    def _failure(self, error: sqlite3.Error) -> StoreFailed:
        text = str(error)
        if "locked" in text or "busy" in text:
            return StoreFailed(f"{self._path} is locked by another program: stop it (fuser {self._path}) and try again")
        if "malformed" in text or "not a database" in text:
            return StoreFailed(self._damaged(text))
        # With no room for its index beside the file SQLite speaks of I/O, or of a file that it cannot open.
        if "full" in text or full_disk.is_full(self._path.parent):
            return DiskFull(str(self._path.parent), "nothing was lost")
        return StoreFailed(f"{self._path}: {text}")

    def _damaged(self, what: str) -> str:
        return (
            f"{self._path} is damaged ({what}): restore it from a backup, or move it away to start afresh "
            "(running sandboxes will then be removed, saved workspaces stay on disk)"
        )


def _settle(done: asyncio.Future[None], error: StoreFailed | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
