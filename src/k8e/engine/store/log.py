"""A log in a file: entries of owners and their sessions, appended in order, dropped from the oldest on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from k8e.engine.store.entries import Append, Drop, Entry, LogChange, LoggedEntry
from k8e.engine.store.sqlite import LogDatabase
from k8e.engine.store.writer import Writer

__all__ = ["Log"]

_LINGER_S: Final = 0.05


class Log:
    """Appending never waits; durable against power loss when `written` returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises: StoreFailed, with the remedy in the text."""
        self._database = LogDatabase(path, "events", survives_power_loss=True)
        self._writer: Writer[LogChange] = Writer(self._database, linger_s=_LINGER_S)

    def append(self, entry: Entry) -> None:
        self._writer.post([Append(entry=entry)])

    def keep_newest(self, keep_bytes: int, owner: str, session_id: str | None = None) -> None:
        """Drop the oldest entries of an owner, or of one session, so that the rest takes no more than this."""
        self._writer.post([Drop(owner=owner, session_id=session_id, keep_bytes=keep_bytes)])

    def drop_before(self, time: float) -> None:
        self._writer.post([Drop(before=time)])

    async def written(self) -> None:
        """Wait until all that was handed in is on disk, or has failed."""
        await self._writer.commit([])

    def sizes(self) -> Iterator[tuple[str, str, int]]:
        """Owner, session, and what the session's entries take."""
        return self._database.sizes()

    def newest(self, owner: str, session_id: str, *, most: int, before: int = 0) -> Iterator[LoggedEntry]:
        """The newest entries of a session, newest first; those before a number, unless that is 0."""
        return self._database.newest(owner, session_id, most=most, before=before)

    def close(self) -> None:
        """Finish writing."""
        self._writer.close()
