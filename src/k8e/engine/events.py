"""What happened to whom: one append-only record of every decision, durable against power loss.

Appending never waits: the record is handed to a writer thread and the caller goes on. What one session and one owner
may leave here is bounded in bytes, and pruned while it grows: the oldest goes first.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k8e.engine.settings import KeptLimits
from k8e.engine.store import Entry, Log, LoggedEntry
from k8e.loop_turns import InTurns
from k8e.model import PAGE_BYTES, OwnerId, SessionId

__all__ = ["EventLog", "EventPage"]

_EVENT_BYTES: Final = 16 * 1024
_TEXT_CHARS: Final = 512
_ITEMS: Final = 16
_SLACK: Final = 1.25
"""A budget is passed by this much before it is pruned, so that not every event costs a deletion."""


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
        self._log = Log(path)
        self._of_session: Counter[tuple[str, str]] = Counter()
        self._of_owner: Counter[str] = Counter()
        for owner, session, size in self._log.sizes():
            self._count(owner, session, size)
        self._prune_days()
        self._pruned_at = clock()

    def add(self, owner: OwnerId, session: SessionId | str, kind: str, **fields: object) -> None:
        """Record one event; never command output, never a value of the environment."""
        entry = Entry(at=self._clock(), owner=owner, session_id=session, kind=kind, fields=_text(fields))
        self._log.append(entry)
        self._count(owner, session, entry.size)
        if self._of_session[owner, session] > self._kept.events_per_session * _SLACK:
            self._prune_session(owner, session)
        if self._of_owner[owner] > self._kept.events_per_owner * _SLACK:
            self._prune_owner(owner)
        if self._clock() - self._pruned_at > 86400:
            self._pruned_at = self._clock()
            self._prune_days()

    async def read(self, owner: OwnerId, session: SessionId, limit: int, *, before: int = 0) -> EventPage:
        """The newest `limit` events of a session, or the newest before one of them, as many as fit a page."""
        await self._log.written()
        entries = self._log.newest(owner, session, most=limit + 1, before=before)
        events: list[str] = []
        seq = size = 0
        async for entry in InTurns(entries):
            text = _told(session, entry)
            size += len(text)
            if len(events) == limit or (events and size > PAGE_BYTES):
                return EventPage(events[::-1], seq)
            events.append(text)
            seq = entry.number
        return EventPage(events[::-1], 0)

    def forget(self, owner: OwnerId, session: SessionId) -> None:
        """The session has ended: what it left counts to its owner alone."""
        del self._of_session[owner, session]

    def close(self) -> None:
        """Finish writing."""
        self._log.close()

    def _count(self, owner: str, session: str, size: int) -> None:
        self._of_session[owner, session] += size
        self._of_owner[owner] += size

    def _prune_session(self, owner: str, session: str) -> None:
        most = self._kept.events_per_session
        self._log.keep_newest(most, owner, session)
        # Not taken from the owner's count: how much has gone is not known here, and too high a count is safe.
        self._of_session[owner, session] = most

    def _prune_owner(self, owner: str) -> None:
        """Afterwards the counts of its sessions are too high by what went: they are pruned early."""
        self._log.keep_newest(self._kept.events_per_owner, owner)
        self._of_owner[owner] = self._kept.events_per_owner

    def _prune_days(self) -> None:
        self._log.drop_before(self._clock() - self._kept.events_age_s)


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


def _told(session: str, entry: LoggedEntry) -> str:
    about = {"seq": entry.number, "time": entry.at, "session_id": session, "event": entry.kind}
    return json.dumps(about | json.loads(entry.fields))
