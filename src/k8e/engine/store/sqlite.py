"""Stores in SQLite files: all SQL of the engine, the formats that files ever had, and what SQLite's errors mean.

A file of records has one table for all kinds, with the record as JSON, because nothing here looks into records. A file
of a log has one row for each entry and computes in SQL what its entries take.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from k8e import full_disk
from k8e.engine.store.changes import Change, Changed, Delete, DeleteUnder, Key, Put
from k8e.engine.store.entries import ENTRY_BYTES, Append, Drop, LogChange, LoggedEntry
from k8e.errors import Conflict, DiskFull, StoreFailed

__all__ = [
    "FORMATS",
    "Applied",
    "Contents",
    "Database",
    "LogDatabase",
    "RecordDatabase",
    "Written",
    "key_text",
]

C = TypeVar("C")
Contents: TypeAlias = Literal["engine", "approvals", "secrets", "events"]
"""What a file is for, which says what formats it has had."""
_BUSY_MS: Final = 2000
_COMMITS_PER_WRITER: Final = 2**40
"""A version is the number of the writer times this, plus the count of its commits. SQLite's integers have room for eight
million writers; each process that begins to write is a new one.
"""

_RECORDS: Final = """
CREATE TABLE records (
    kind TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, key)) STRICT;
CREATE TABLE writers (count INTEGER NOT NULL) STRICT;
INSERT INTO writers VALUES (0);
"""
# `key_of`, `number` and `truth` are functions of ours: keys, numbers and truth values as the rest of the engine writes
# them as JSON. SQLite's own way has fewer digits and no infinity.
_TO_ENGINE: Final = """
INSERT INTO records SELECT 'session', key_of(owner, session_id), 1, json_object(
    'owner', owner, 'session_id', session_id, 'sandbox', sandbox, 'phase', phase, 'spec', json(spec),
    'parent', nullif(parent, ''), 'workspace', nullif(workspace, ''), 'warm', json(truth(warm)), 'detail', detail,
    'created_at', json(number(created_at)), 'expires_at', json(number(expires_at)),
    'idle_timeout_s', json(number(idle_timeout_s)), 'last_used', json(number(last_used)),
    'gateway', gateway, 'epoch', epoch) FROM sessions;
INSERT INTO records SELECT 'run', key_of(owner, session_id, id), 1, json_object(
    'run_id', id, 'owner', owner, 'session_id', session_id, 'started_at', json(number(started_at)), 'command', command,
    'truncated', json(truth(truncated)),
    'outcome', json(CASE outcome WHEN '' THEN 'null' ELSE json_remove(outcome, '$.denied') END),
    'denied', json(coalesce(json_extract(nullif(outcome, ''), '$.denied'), '[]'))) FROM runs;
INSERT INTO records SELECT 'terminal', key_of(owner, session_id, id), 1, json_object(
    'terminal_id', id, 'owner', owner, 'session_id', session_id, 'pid', pid) FROM terminals;
INSERT INTO records SELECT 'workspace', key_of(owner, tenant), 1, json_object(
    'owner', owner, 'tenant', tenant, 'workspace', id, 'disk_bytes', disk_bytes,
    'last_used', json(number(last_used)), 'gates', json(gates)) FROM workspaces;
DROP TABLE sessions; DROP TABLE runs; DROP TABLE terminals; DROP TABLE workspaces;
"""
_ENGINE: Final = (
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
    _RECORDS + _TO_ENGINE,
)
_TO_APPROVALS: Final = """
INSERT INTO records SELECT 'approval', key_of(owner, approval_id), 1, json_object(
    'approval_id', approval_id, 'owner', owner, 'session_id', session_id, 'sandbox', sandbox, 'action', action,
    'asked_by', asked_by, 'asked_at', json(number(asked_at)), 'expires_at', json(number(expires_at)),
    'status', status, 'decided_by', decided_by, 'reason', reason, 'decided_at', json(number(decided_at)),
    'is_gate', json(truth(is_gate))) FROM approvals;
DROP TABLE approvals;
"""
_APPROVALS: Final = (
    """
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY, owner TEXT NOT NULL, session_id TEXT NOT NULL, sandbox TEXT NOT NULL,
    action TEXT NOT NULL, asked_by TEXT NOT NULL, asked_at REAL NOT NULL, expires_at REAL NOT NULL,
    status TEXT NOT NULL, decided_by TEXT NOT NULL, reason TEXT NOT NULL, decided_at REAL NOT NULL) STRICT;
""",
    "ALTER TABLE approvals ADD COLUMN is_gate INTEGER NOT NULL DEFAULT 0;",
    _RECORDS + _TO_APPROVALS,
)
_TO_SECRETS: Final = """
INSERT INTO records SELECT 'secret', key_of(owner, name, key), 1, json_object(
    'owner', owner, 'name', name, 'key', key, 'sealed', lower(hex(sealed)),
    'updated_at', json(number(updated_at))) FROM secrets;
DROP TABLE secrets;
"""
_SECRETS: Final = (
    """
CREATE TABLE secrets (
    owner TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, sealed BLOB NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (owner, name, key)) STRICT;
""",
    _RECORDS + _TO_SECRETS,
)
_EVENTS: Final = (
    """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, owner TEXT NOT NULL, session_id TEXT NOT NULL,
    kind TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
CREATE INDEX events_by_session ON events (owner, session_id, seq);
""",
)
FORMATS: Final[Mapping[Contents, Sequence[str]]] = {
    "engine": _ENGINE,
    "approvals": _APPROVALS,
    "secrets": _SECRETS,
    "events": _EVENTS,
}
"""The first format that ever was, and what made the next one of it, each time: a file of any of them is taken over."""


_AFRESH: Final[Mapping[Contents, str]] = {
    "engine": "running sandboxes will then be removed, saved workspaces stay on disk",
    "approvals": "what waits for an answer is then refused, and answers that were given are forgotten",
    "secrets": "every secret must then be set again",
    "events": "what has happened until now is then forgotten",
}
"""What it costs to go on without a file."""


@dataclass(frozen=True, slots=True)
class Written:
    """A commit that was carried out, and what it changed."""

    version: int
    changed: Sequence[Changed[Any]] = ()


Applied: TypeAlias = Written | Conflict


class Database(Generic[C]):
    """One file. It is written by one thread; reading has a connection of its own and sees what is committed."""

    def __init__(self, path: Path, contents: Contents, *, survives_power_loss: bool) -> None:
        """Open or create the file. Raises: StoreFailed, with the remedy in the text.

        It always survives any crash of ours; the last moments before a power loss only where that is asked for.
        """
        self.path = path
        self._contents = contents
        # The files that SQLite puts beside it take over its mode, so it is there before SQLite looks.
        with contextlib.suppress(OSError):  # which SQLite then explains
            path.touch(mode=0o600)
        self._db = self._connect(FORMATS[contents], "FULL" if survives_power_loss else "NORMAL")
        self._reader = self._open()

    def transact(self, commits: Sequence[Sequence[C]]) -> list[Applied]:
        """Make commits durable in one transaction; a commit whose conditions do not hold is left out of it.

        Raises: StoreFailed; then nothing of any of them is written.
        """
        if not any(commits):
            return [Written(0)] * len(commits)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            applied = self._apply(commits)
            self._db.execute("COMMIT")
        except Exception as error:
            # Whatever it was, also text that SQLite cannot take: no transaction stays open.
            self._roll_back()
            raise self.failure(error) from error
        return applied

    def _roll_back(self) -> None:
        # After some errors SQLite has done so itself; where it cannot, the next BEGIN fails and says why.
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._reader.close()
        self._db.close()

    def damaged(self, what: str) -> StoreFailed:
        """The error for content that cannot be true."""
        return StoreFailed(
            f"{self.path} is damaged ({what}): restore it from a backup, or move it away to start afresh "
            f"({_AFRESH[self._contents]})"
        )

    def failure(self, error: Exception) -> StoreFailed:
        """What SQLite says, by what can be done about it; any other error is a change that cannot be written."""
        if not isinstance(error, sqlite3.Error):
            return StoreFailed(f"{self.path}: {error!r}")
        text = str(error)
        if "locked" in text or "busy" in text:
            return StoreFailed(f"{self.path} is locked by another program: stop it (fuser {self.path}) and try again")
        if "malformed" in text or "not a database" in text:
            return self.damaged(text)
        # With no room for its index beside the file SQLite speaks of I/O, or of a file that it cannot open.
        if "full" in text or full_disk.is_full(self.path.parent):
            return DiskFull(str(self.path.parent), "nothing was lost")
        return StoreFailed(f"{self.path}: {text}")

    def _apply(self, commits: Sequence[Sequence[C]]) -> list[Applied]:
        raise NotImplementedError

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> Iterator[Any]:
        """One at a time: for whoever may stop before the last."""
        try:
            yield from self._reader.execute(sql, values)
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000)

    def _connect(self, formats: Sequence[str], synchronous: str) -> sqlite3.Connection:
        try:
            db = self._open()
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(f"PRAGMA synchronous={synchronous}")
                self._migrate(db, formats)
            except BaseException:
                db.close()  # with the transaction that it may be in: nobody else could open the file meanwhile
                raise
        except sqlite3.Error as error:
            raise self.failure(error) from error
        return db

    def _migrate(self, db: sqlite3.Connection, formats: Sequence[str]) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(formats):
            raise StoreFailed(
                f"{self.path} has format {version}, this k8e reads {len(formats)}: run the k8e that wrote it"
            )
        if version < len(formats):
            for name, function in _FUNCTIONS.items():
                db.create_function(name, -1, function, deterministic=True)
            # One transaction: killed half-way, the file is as it was.
            script = " ".join(formats[version:])
            db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version={len(formats)}; COMMIT;")
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self.damaged(verdict)


class RecordDatabase(Database[Change]):
    """Records by kind and key, each with the version of the commit that wrote it.

    A version is the number of a writer times 2^40 plus the count of its commits. Who begins to write takes the next number,
    also when another process has written since. So versions grow over all changes of the file, whoever makes them, none is
    ever used twice, whatever was deleted meanwhile, and a commit writes no counter of its own.
    """

    _version = 0
    """The last that was given; 0 before the first commit of this process."""

    def transact(self, commits: Sequence[Sequence[Change]]) -> list[Applied]:
        before = self._version
        try:
            return super().transact(commits)
        except StoreFailed:
            # A number for this process may have been taken in it, and is not on disk either.
            self._version = before
            raise

    def load(self, kind: str, key: Key) -> list[tuple[str, int, str]]:
        """Key, version and body of all records of a kind whose keys begin like this, as they are at one moment."""
        sql = "SELECT key, version, body FROM records WHERE kind=? AND key>=? AND key<?"
        return list(self._rows(sql, (kind, *_range(key))))

    def get(self, kind: str, key: Key) -> tuple[str, int, str] | None:
        """One record."""
        values = (kind, key_text(key))
        return next(self._rows("SELECT key, version, body FROM records WHERE kind=? AND key=?", values), None)

    def _apply(self, commits: Sequence[Sequence[Change]]) -> list[Applied]:
        version = self._version if self._is_still_the_writer() else self._first_version()
        applied = [self._commit(changes, number) for number, changes in enumerate(commits, version + 1)]
        self._version = version + len(commits)
        return applied

    def _is_still_the_writer(self) -> bool:
        """Whether nobody else has begun to write since this process did."""
        if not self._version:
            return False
        ((number,),) = self._db.execute("SELECT count FROM writers").fetchall()
        return bool(number == self._version // _COMMITS_PER_WRITER)

    def _first_version(self) -> int:
        # Taken in the first transaction: opening a file for reading writes nothing.
        ((number,),) = self._db.execute("UPDATE writers SET count = count + 1 RETURNING count").fetchall()
        return int(number) * _COMMITS_PER_WRITER

    def _commit(self, changes: Sequence[Change], version: int) -> Applied:
        # All conditions before the first change: what is refused has left no trace that would have to be undone.
        for change in changes:
            if conflict := self._conflict(change):
                return conflict
        return Written(version, [each for change in changes for each in self._change(change, version)])

    def _conflict(self, change: Change) -> Conflict | None:
        if isinstance(change, DeleteUnder) or change.if_version is None:
            return None
        sql = "SELECT version FROM records WHERE kind=? AND key=?"
        (found,) = self._db.execute(sql, (change.kind, key_text(change.key))).fetchone() or (0,)
        if found == change.if_version:
            return None
        name = f"{change.kind} {'/'.join(change.key)}"
        if not change.if_version:
            return Conflict(f"{name} already exists")
        return Conflict(f"{name} has been changed meanwhile" if found else f"{name} is no longer there")

    def _change(self, change: Change, version: int) -> list[Changed[Any]]:
        """What it really changes."""
        match change:
            case Put(kind=kind, key=key, body=body, if_there=True):
                sql = "UPDATE records SET version=?, body=? WHERE kind=? AND key=?"
                is_done = self._db.execute(sql, (version, body, kind, key_text(key))).rowcount
                return [Changed(kind, key, version, change.record)] if is_done else []
            case Put(kind=kind, key=key, body=body):
                sql = (
                    "INSERT INTO records VALUES (?,?,?,?) "
                    "ON CONFLICT (kind, key) DO UPDATE SET version=excluded.version, body=excluded.body"
                )
                self._db.execute(sql, (kind, key_text(key), version, body))
                return [Changed(kind, key, version, change.record)]
            case Delete(kind=kind, key=key):
                sql = "DELETE FROM records WHERE kind=? AND key=?"
                is_done = self._db.execute(sql, (kind, key_text(key))).rowcount
                return [Changed(kind, key, version, None)] if is_done else []
            case DeleteUnder(kind=kind, key=key):
                sql = "DELETE FROM records WHERE kind=? AND key>=? AND key<? RETURNING key"
                gone = self._db.execute(sql, (kind, *_range(key))).fetchall()
                return [Changed(kind, tuple(json.loads(text)), version, None) for (text,) in gone]


_SIZE: Final = f"LENGTH(fields) + LENGTH(kind) + 2 * (LENGTH(owner) + LENGTH(session_id)) + {ENTRY_BYTES}"
"""Whose it is stands in the table and in the index."""


class LogDatabase(Database[LogChange]):
    """Entries of owners and their sessions, in the order in which they were appended."""

    def sizes(self) -> Iterator[tuple[str, str, int]]:
        """Owner, session, and what the session's entries take."""
        return self._rows(f"SELECT owner, session_id, SUM({_SIZE}) FROM events GROUP BY owner, session_id")  # noqa: S608  # ours

    def newest(self, owner: str, session_id: str, *, most: int, before: int) -> Iterator[LoggedEntry]:
        """The newest entries of a session, newest first; those before a number, unless that is 0."""
        sql = (
            "SELECT seq, at, kind, fields FROM events WHERE owner=? AND session_id=? AND (?=0 OR seq<?) "
            "ORDER BY seq DESC LIMIT ?"
        )
        return (LoggedEntry(*row) for row in self._rows(sql, (owner, session_id, before, before, most)))

    def _apply(self, commits: Sequence[Sequence[LogChange]]) -> list[Applied]:
        for change in (change for changes in commits for change in changes):
            self._change(change)
        return [Written(0)] * len(commits)

    def _change(self, change: LogChange) -> None:
        match change:
            case Append(entry=entry):
                sql = "INSERT INTO events (at, owner, session_id, kind, fields) VALUES (?,?,?,?,?)"
                self._db.execute(sql, (entry.at, entry.owner, entry.session_id, entry.kind, entry.fields))
            case Drop(owner=None, before=before):
                self._db.execute("DELETE FROM events WHERE at < ?", (before,))
            case Drop(owner=owner, session_id=None, keep_bytes=keep):
                self._db.execute(_beyond("owner=?"), (owner, keep))
            case Drop(owner=owner, session_id=session_id, keep_bytes=keep):
                self._db.execute(_beyond("owner=? AND session_id=?"), (owner, session_id, keep))


def _beyond(whose: str) -> str:
    """Removes the oldest of these, so that what stays takes no more than a size."""
    return f"""
DELETE FROM events WHERE seq IN (SELECT seq FROM (
    SELECT seq, SUM({_SIZE}) OVER (ORDER BY seq DESC) AS newer FROM events WHERE {whose})
    WHERE newer > ?)"""  # noqa: S608  # ours


def key_text(key: Key) -> str:
    """A key as one text, a JSON list: no key is the beginning of another one by chance."""
    return f"[{','.join(map(json.encoder.encode_basestring_ascii, key))}]"


def _range(key: Key) -> tuple[str, str]:
    """Between which texts the keys lie that begin with these parts; `-` is the character after the comma."""
    begin = key_text(key)[:-1]
    return (f"{begin},", f"{begin}-") if key else ("[", "\\")


def _number(value: float) -> str:
    """All digits; what JSON cannot say is no number at all."""
    return repr(float(value)) if math.isfinite(value) else "null"


_FUNCTIONS: Final[dict[str, Callable[..., str]]] = {
    "key_of": lambda *parts: key_text(parts),
    "number": _number,
    "truth": lambda value: "true" if value else "false",
}
