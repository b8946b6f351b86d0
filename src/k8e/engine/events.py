"""What happened to whom: one append-only record of every decision, durable against power loss.

Appending never waits: the record is handed to a writer thread and the caller goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from k8e.engine.store import Change, Store
from k8e.model import OwnerId, SessionId

__all__ = ["EventLog"]

_SCHEMA = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, owner TEXT NOT NULL, session_id TEXT NOT NULL,
    kind TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
CREATE INDEX events_by_session ON events (owner, session_id, seq);
"""


_LINGER_S = 0.05


class EventLog:
    def __init__(self, path: Path, *, keep_days: float, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._store = Store(path, schema=(_SCHEMA,), synchronous="FULL", linger_s=_LINGER_S)
        self._store.post(Change("DELETE FROM events WHERE at < ?", (clock() - keep_days * 86400,)))

    def add(self, owner: OwnerId, session: SessionId | str, kind: str, **fields: object) -> None:
        """Record one event; never command output, never a value of the environment."""
        text = json.dumps(fields, separators=(",", ":"))
        self._store.post(
            Change(
                "INSERT INTO events (at, owner, session_id, kind, fields) VALUES (?,?,?,?,?)",
                (self._clock(), owner, session, kind, text),
            )
        )

    async def read(self, owner: OwnerId, session: SessionId, limit: int) -> list[str]:
        """The newest `limit` events of a session, oldest first, one JSON object each."""
        await self._store.commit()
        rows = self._store.rows(
            "SELECT seq, at, kind, fields FROM events WHERE owner=? AND session_id=? ORDER BY seq DESC LIMIT ?",
            (owner, session, limit),
        )
        return [
            json.dumps(
                {
                    "seq": row["seq"],
                    "time": row["at"],
                    "session_id": session,
                    "event": row["kind"],
                    **json.loads(row["fields"]),
                }
            )
            for row in reversed(rows)
        ]

    def close(self) -> None:
        """Finish writing."""
        self._store.close()
