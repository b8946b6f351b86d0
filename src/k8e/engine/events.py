"""What happened to whom: one append-only record of every decision, durable against power loss.

Appending never waits: the record is handed to a writer thread and the caller goes on. What one session and one owner
may leave here is bounded in bytes, and pruned while it grows: the oldest goes first.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k8e.engine.settings import KeptLimits
from k8e.engine.store import Change, Store
from k8e.loop_turns import InTurns
from k8e.model import PAGE_BYTES, OwnerId, SessionId

__all__ = ["EventLog", "EventPage"]

_SCHEMA: Final = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, owner TEXT NOT NULL, session_id TEXT NOT NULL,
    kind TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
CREATE INDEX events_by_session ON events (owner, session_id, seq);
"""

_LINGER_S: Final = 0.05
_ROW_BYTES: Final = 160
"""What an event costs beside its texts: its numbers, and its places in the table and in the index."""
_SIZE_SQL: Final = f"LENGTH(fields) + LENGTH(kind) + 2 * (LENGTH(owner) + LENGTH(session_id)) + {_ROW_BYTES}"
"""Whose it is stands in the table and in the index."""
_EVENT_BYTES: Final = 16 * 1024
_TEXT_CHARS: Final = 512
_ITEMS: Final = 16
_SLACK: Final = 1.25
"""A budget is passed by this much before it is pruned, so that not every event costs a deletion."""
_SIZES_SQL: Final = f"SELECT owner, session_id, SUM({_SIZE_SQL}) AS size FROM events GROUP BY owner, session_id"  # noqa: S608  # ours
_PRUNE_SESSION_SQL: Final = f"""
DELETE FROM events WHERE seq IN (SELECT seq FROM (
    SELECT seq, SUM({_SIZE_SQL}) OVER (ORDER BY seq DESC) AS newer FROM events WHERE owner=? AND session_id=?)
    WHERE newer > ?)"""  # noqa: S608  # ours
_PRUNE_OWNER_SQL: Final = f"""
DELETE FROM events WHERE seq IN (SELECT seq FROM (
    SELECT seq, SUM({_SIZE_SQL}) OVER (ORDER BY seq DESC) AS newer FROM events WHERE owner=?)
    WHERE newer > ?)"""  # noqa: S608  # ours


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in the order in which they happened, one JSON object each."""

    events: list[str]
    before: int
    """What to ask for to have those that came before these; 0 when there are none."""


class EventLog:
    def __init__(self, path: Path, kept: KeptLimits, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept = kept
        self._store = Store(path, schema=(_SCHEMA,), synchronous="FULL", linger_s=_LINGER_S)
        self._of_session: Counter[tuple[str, str]] = Counter()
        self._of_owner: Counter[str] = Counter()
        for row in self._store.rows(_SIZES_SQL):
            self._count(row["owner"], row["session_id"], row["size"])
        self._prune_days()
        self._pruned_at = clock()

    def add(self, owner: OwnerId, session: SessionId | str, kind: str, **fields: object) -> None:
        """Record one event; never command output, never a value of the environment."""
        text = _text(fields)
        self._store.post(
            Change(
                "INSERT INTO events (at, owner, session_id, kind, fields) VALUES (?,?,?,?,?)",
                (self._clock(), owner, session, kind, text),
            )
        )
        self._count(owner, session, len(text) + len(kind) + 2 * (len(owner) + len(session)) + _ROW_BYTES)
        if self._of_session[owner, session] > self._kept.events_per_session * _SLACK:
            self._prune_session(owner, session)
        if self._of_owner[owner] > self._kept.events_per_owner * _SLACK:
            self._prune_owner(owner)
        if self._clock() - self._pruned_at > 86400:
            self._pruned_at = self._clock()
            self._prune_days()

    async def read(self, owner: OwnerId, session: SessionId, limit: int, *, before: int = 0) -> EventPage:
        """The newest `limit` events of a session, or the newest before one of them, as many as fit a page."""
        await self._store.commit()
        rows = self._store.each(
            "SELECT seq, at, kind, fields FROM events WHERE owner=? AND session_id=? AND (?=0 OR seq<?) "
            "ORDER BY seq DESC LIMIT ?",
            (owner, session, before, before, limit + 1),
        )
        events: list[str] = []
        seq = size = 0
        async for row in InTurns(rows):
            text = _told(session, row)
            size += len(text)
            if len(events) == limit or (events and size > PAGE_BYTES):
                return EventPage(events[::-1], seq)
            events.append(text)
            seq = row["seq"]
        return EventPage(events[::-1], 0)

    def forget(self, owner: OwnerId, session: SessionId) -> None:
        """The session has ended: what it left counts to its owner alone."""
        del self._of_session[owner, session]

    def close(self) -> None:
        """Finish writing."""
        self._store.close()

    def _count(self, owner: str, session: str, size: int) -> None:
        self._of_session[owner, session] += size
        self._of_owner[owner] += size

    def _prune_session(self, owner: str, session: str) -> None:
        most = self._kept.events_per_session
        self._store.post(Change(_PRUNE_SESSION_SQL, (owner, session, most)))
        # Not taken from the owner's count: how much has gone is not known here, and too high a count is safe.
        self._of_session[owner, session] = most

    def _prune_owner(self, owner: str) -> None:
        """Afterwards the counts of its sessions are too high by what went: they are pruned early."""
        self._store.post(Change(_PRUNE_OWNER_SQL, (owner, self._kept.events_per_owner)))
        self._of_owner[owner] = self._kept.events_per_owner

    def _prune_days(self) -> None:
        self._store.post(Change("DELETE FROM events WHERE at < ?", (self._clock() - self._kept.events_age_s,)))


def _text(fields: Mapping[str, object]) -> str:
    """The fields as JSON; of one that is too long, its beginning."""
    text = json.dumps(fields, separators=(",", ":"))
    if len(text) > _EVENT_BYTES:
        text = json.dumps({name: _cut(value) for name, value in fields.items()} | {"cut": True})
    return text if len(text) <= _EVENT_BYTES else '{"cut":true}'


def _cut(value: object) -> object:
    if isinstance(value, str):
        return value[:_TEXT_CHARS]
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value[:_ITEMS]]
    return value


def _told(session: str, row: sqlite3.Row) -> str:
    about = {"seq": row["seq"], "time": row["at"], "session_id": session, "event": row["kind"]}
    return json.dumps(about | json.loads(row["fields"]))
