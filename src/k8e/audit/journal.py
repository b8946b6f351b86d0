"""The writer of the trail: records are handed over and never waited for.

A thread writes each record as soon as it comes and makes them durable together a moment later. A disk that is full
does not stop the service: records wait, in bounds, and what was lost beyond them is itself recorded.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
import time
from pathlib import Path
from typing import Final

from k8e.audit.chain import Broken, End, Fields, Head, sealed
from k8e.audit.files import MAIN, Trail, first_seq
from k8e.errors import StoreFailed

__all__ = ["HEAD_LOST", "Journal"]

_log = logging.getLogger(__name__)

HEAD_LOST: Final = "audit.head_lost"
_SYNC_S: Final = 0.05
"""How long written records wait for others before the disk is asked to keep them."""
_RETRY_S: Final = 1.0
_GROUP: Final = 256
_WAITING: Final = 20_000
_KEPT_BYTES: Final = 2**30
_FILES: Final = 64
"""The trail is kept in so many files of equal size; when they are full the oldest goes, and the head says so."""


class Journal:
    """Opened once per data directory and trail; `close` finishes what was handed over."""

    def __init__(self, data_dir: Path, *, name: str = MAIN, kept_bytes: int = _KEPT_BYTES, files: int = _FILES) -> None:
        """Open or create the trail, and mend what a crash left. Raises: StoreFailed."""
        self._trail = Trail(data_dir, name)
        self._file_bytes = kept_bytes // files
        self._files = files
        self._queue: queue.SimpleQueue[Fields | None] = queue.SimpleQueue()
        self._backlog: list[Fields] = []
        self._dropped = self._overflowed = self._told = 0
        self._is_failing = False
        self._retry_at = 0.0
        self._has_rotated = True
        self._size = 0
        self._fd = -1
        try:
            self._trail.directory.mkdir(parents=True, exist_ok=True)
            self._trail.directory.chmod(0o700)
            self._key, head = self._open_head()
            self._begins = head.begins
            self._synced = self._end = self._open_last(head)
        except OSError as error:
            raise StoreFailed(f"cannot write the audit trail in {self._trail.directory}: {error}") from error
        self._thread = threading.Thread(target=self._work, name="audit writer", daemon=True)
        self._thread.start()

    def add(self, fields: Fields) -> None:
        """Hand over one record; returns at once."""
        if self._queue.qsize() < _WAITING:
            self._queue.put(fields)
        else:
            self._dropped += 1

    def close(self) -> None:
        """Write down what was handed over."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._fd)

    # At start

    def _open_head(self) -> tuple[bytes, Head]:
        key = self._trail.key()
        if key is None and not self._trail.files():
            return self._trail.begin(), Head()
        try:
            key = key or self._trail.begin()
            head = self._trail.head(key)
            reason = "" if head else "there is none"
        except Broken as error:
            head, reason = None, str(error)
        if reason:
            _log.error("the head of the audit trail cannot be used", extra={"reason": reason})
            self._backlog.append(_note(HEAD_LOST, reason=reason))
        return key or b"", head or Head()

    def _open_last(self, head: Head) -> End:
        """Open the newest file and say where the chain goes on: nothing that was there is hidden by going on."""
        paths = self._trail.files()
        path = paths[-1] if paths else self._trail.file_from(head.ends.seq + 1)
        self._fd = self._trail.open_to_append(path)
        tail = self._trail.tail(path, self._key)
        if tail.cut_bytes:
            _log.warning("a record of the audit trail was cut short by a crash", extra={"bytes": tail.cut_bytes})
            os.ftruncate(self._fd, tail.whole_bytes)
            self._backlog.append(_note("audit.repaired", cut_bytes=tail.cut_bytes))
        self._size = tail.whole_bytes
        end = self._last_end(head)
        if end.seq < head.ends.seq:
            _log.error("records of the audit trail are missing", extra={"last": end.seq, "known": head.ends.seq})
            return head.ends
        return end

    def _last_end(self, head: Head) -> End:
        for path in reversed(self._trail.files()):
            tail = self._trail.tail(path, self._key)
            if tail.whole_bytes:
                return tail.end or head.ends
        return head.begins

    # In the thread

    def _work(self) -> None:
        due = time.monotonic()
        is_open = True
        self._write_all()
        while is_open:
            batch, is_open = self._next()
            if batch and self._synced == self._end:
                due = time.monotonic() + _SYNC_S
            self._backlog += batch
            self._write_all(now_or_never=not is_open)
            if self._synced != self._end and (time.monotonic() >= due or not is_open):
                self._sync()

    def _next(self) -> tuple[list[Fields], bool]:
        """What was handed over since, and whether more may come; waits no longer than something else is due."""
        is_idle = self._synced == self._end and not self._backlog
        batch: list[Fields] = []
        try:
            first = self._queue.get(timeout=None if is_idle else _RETRY_S if self._is_failing else _SYNC_S)
            while first is not None:
                batch.append(first)
                if len(batch) >= _GROUP:
                    return batch, True
                first = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _write_all(self, *, now_or_never: bool = False) -> None:
        """Write the backlog; where that fails it waits, and what is beyond bounds is counted as lost."""
        if self._is_failing and time.monotonic() < self._retry_at and not now_or_never:
            self._bound()
            return
        try:
            while self._backlog:
                del self._backlog[: self._write(self._backlog[:_GROUP])]
        except OSError as error:
            self._fail(error)

    def _write(self, records: list[Fields]) -> int:
        """Write the first of them, until the file is full; returns how many they were."""
        if self._size >= self._file_bytes:
            self._rotate()
        lost = self._dropped + self._overflowed
        notes = [_note("audit.lost", records=lost - self._told)] if lost > self._told else []
        lines, end, count = bytearray(), self._end, 0
        for count, fields in enumerate([*notes, *records], 1):
            line, end = sealed(fields, after=end, key=self._key)
            lines += line
            if count > len(notes) and self._size + len(lines) >= self._file_bytes:
                break
        self._append(lines)
        self._end, self._told = end, lost
        return count - len(notes)

    def _append(self, lines: bytes | bytearray) -> None:
        if self._is_failing:
            # Half a record is none, and a second try must not begin in the middle of a line.
            os.ftruncate(self._fd, self._size)
        if os.write(self._fd, lines) != len(lines):
            raise OSError(errno.ENOSPC, "no space left on device")
        self._size += len(lines)

    def _bound(self) -> None:
        if len(self._backlog) > _WAITING:
            self._overflowed += len(self._backlog) - _WAITING
            del self._backlog[_WAITING:]

    def _fail(self, error: OSError) -> None:
        self._bound()
        self._retry_at = time.monotonic() + _RETRY_S
        if not self._is_failing:
            self._is_failing = True
            _log.error(
                "THE AUDIT TRAIL CANNOT BE WRITTEN; the service goes on: free space on its disk",
                extra={"directory": str(self._trail.directory), "error": str(error)},
            )

    def _rotate(self) -> None:
        os.fsync(self._fd)
        fd = self._trail.open_to_append(self._trail.file_from(self._end.seq + 1))
        os.close(self._fd)
        self._fd, self._size, self._has_rotated = fd, 0, True

    def _sync(self) -> None:
        end = self._end
        try:
            os.fdatasync(self._fd)
            doomed = self._prune() if self._has_rotated else []
            self._trail.write_head(Head(begins=self._begins, ends=end), self._key)
            for path in doomed:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._fail(error)
            return
        self._synced, self._has_rotated = end, False
        if self._is_failing:
            _log.warning("the audit trail is written again")
            self._is_failing = False

    def _prune(self) -> list[Path]:
        """Files beyond the bound, once the head begins after them: a crash in between leaves one too many."""
        paths = self._trail.files()
        doomed, kept = paths[: -self._files], paths[-self._files :]
        if doomed:
            last = self._trail.tail(doomed[-1], self._key).end
            self._begins = last or End(first_seq(kept[0]) - 1, self._begins.hash)
        return doomed


def _note(kind: str, **fields: str | int) -> Fields:
    """What the journal itself has to say."""
    return {"time": round(time.time(), 3), "rpc": kind, "identity": "server", "outcome": "OK", **fields}
