"""The engine's memory: records of several kinds in one file, each with a version.

A change is durable before the caller's `await` returns. Reading happens at start: afterwards the engine's own objects are
the truth of one server, and what it keeps is what the next one finds.

The interface is that of a key-value store with versions and nothing more, so that a Kubernetes API server can stand
behind it as well: there a record is an object and its version the `resourceVersion`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from k8e.engine.store.changes import Change, Changed, Kind, Stored
from k8e.engine.store.codec import Malformed, fields_of
from k8e.engine.store.sqlite import Contents, RecordDatabase, key_text
from k8e.engine.store.watch import Watch
from k8e.engine.store.writer import Writer
from k8e.errors import StoreFailed

__all__ = ["RETRY_PAUSES_S", "Store"]

_log = logging.getLogger(__name__)

R = TypeVar("R")
RETRY_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Between the tries of `commit_retrying`."""


class Store:
    """Opened once per server; `close` waits for everything handed in before.

    Writing waits for the disk, reading does not: a store behind a network answers `load` and `get` from the copy that it
    keeps by watching.
    """

    def __init__(self, path: Path, contents: Contents = "engine", *, survives_power_loss: bool = False) -> None:
        """Open or create the file. Raises: StoreFailed, with the remedy in the text.

        A file of a former format is taken over, and has the newest from then on. Whatever is committed survives any crash
        of ours; the last moments before a power loss only where that is asked for, at a tenth of the speed.
        """
        self._database = RecordDatabase(path, contents, survives_power_loss=survives_power_loss)
        self._watches: tuple[Watch[Any], ...] = ()
        """Replaced, never changed: the writer's thread looks at it."""
        self._writer = Writer(self._database, tell=self._tell)

    def load(self, kind: Kind[R], *under: str) -> list[Stored[R]]:
        """All records of a kind, or those whose keys begin like this, in no order that could be relied on.

        One that is not what its class says is left out, and said in the log, where its kind allows that.
        Raises: StoreFailed, also for any other such one.
        """
        found = []
        for key, version, body in self._database.load(kind.name, under):
            try:
                found.append(Stored(_record(kind, key, body), version))
            except Malformed as error:
                if not kind.may_miss(fields_of(body)):
                    raise self._damaged(kind, key, error) from error
                _log.error("a damaged record is left out", extra={"kind": kind.name, "key": key, "error": str(error)})
        return found

    def get(self, kind: Kind[R], *key: str) -> Stored[R] | None:
        """One record. Raises: StoreFailed."""
        row = self._database.get(kind.name, key)
        if row is None:
            return None
        name, version, body = row
        try:
            return Stored(_record(kind, name, body), version)
        except Malformed as error:
            raise self._damaged(kind, name, error) from error

    async def commit(self, *changes: Change) -> int:
        """Make the changes durable, all or none; the version that they have.

        Raises: StoreFailed, and Conflict when a record has not the version that a change asks for. That is looked at
        before the first of the changes. Nobody else's commit fails with it.
        """
        return await self._writer.commit(changes)

    async def commit_retrying(self, *changes: Change) -> int:
        """The same, tried for some seconds: a database is locked, or a disk full, often only for a while."""
        for pause_s in RETRY_PAUSES_S:
            with contextlib.suppress(StoreFailed):
                return await self.commit(*changes)
            await asyncio.sleep(pause_s)
        return await self.commit(*changes)

    def post(self, *changes: Change) -> None:
        """Hand in changes without waiting; a failure is logged."""
        self._writer.post(changes)

    def watch(self, kind: Kind[R]) -> Watch[R]:
        """What is committed from now on; only while it is watched, so use `with`."""
        watch: Watch[R] = Watch(kind.name, leave=self._leave)
        self._watches = (*self._watches, watch)
        return watch

    def close(self) -> None:
        """Finish what was handed in, end what is watched, then close the file."""
        self._writer.close()
        for watch in self._watches:
            watch.close()

    def _tell(self, changed: Sequence[Changed[Any]]) -> None:
        for watch in self._watches:
            if told := [each for each in changed if each.kind == watch.kind]:
                watch.tell(told)

    def _leave(self, watch: Watch[Any]) -> None:
        self._watches = tuple(each for each in self._watches if each is not watch)

    def _damaged(self, kind: Kind[R], key: str, error: Malformed) -> StoreFailed:
        return self._database.damaged(f"{kind.name} {key}: {error}")


def _record(kind: Kind[R], key: str, body: str) -> R:
    """Raises: Malformed."""
    record = kind.decoded(body)
    if key_text(kind.key(record)) != key:
        raise Malformed(f"it has the content of {'/'.join(kind.key(record))}")
    return record
