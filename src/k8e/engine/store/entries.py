"""What a log keeps and what can be done to it, as values: entries are appended, and the oldest are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = ["ENTRY_BYTES", "Append", "Drop", "Entry", "LogChange", "LoggedEntry"]

ENTRY_BYTES: Final = 160
"""What an entry costs beside its texts: its numbers, and its places in the table and in the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a log, as it is appended."""

    at: float
    owner: str
    session_id: str
    kind: str
    fields: str
    """JSON."""

    @property
    def size(self) -> int:
        """What it takes of a budget."""
        names = 2 * (len(self.owner) + len(self.session_id))
        return len(self.fields) + len(self.kind) + names + ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """One entry as it is read; numbers grow."""

    number: int
    at: float
    kind: str
    fields: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Remove the oldest entries: those of an owner, or of one session, that go beyond a size; or all before a time."""

    owner: str | None = None
    session_id: str | None = None
    keep_bytes: int = 0
    before: float = 0.0


LogChange: TypeAlias = Append | Drop
