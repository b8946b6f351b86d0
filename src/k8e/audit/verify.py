"""Reading the trail: whether it is whole, and what it says. Works beside a running server and without one."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from k8e.audit.chain import BEGIN, Broken, End, Fields, Head, check
from k8e.audit.files import BUSY, MAIN, Trail, first_seq
from k8e.audit.journal import HEAD_LOST
from k8e.errors import StoreFailed

__all__ = ["BUSY_NOTE", "Finding", "records", "verify"]

BUSY_NOTE = "audit.busy"
"""What a record of the main trail calls those that are in the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`problem` is empty when the trail is whole."""

    records: int
    problem: str = ""
    where: str = ""
    """file:line of the record that is wrong."""
    note: str = ""
    trail: str = MAIN
    """Which of the two it is about."""

    @property
    def ok(self) -> bool:
        return not self.problem


def verify(data_dir: Path) -> Finding:
    """Check every record of both trails that is kept, and their heads. Raises: OSError when they cannot be read."""
    main, busy = Trail(data_dir), Trail(data_dir, BUSY)
    found = _verify(main)
    if not found.ok:
        return found
    if not (busy.key_path.exists() or busy.files()):
        # Servers of former versions had one trail only, and never spoke of another.
        if any(record.get("rpc") == BUSY_NOTE for record in _records(main)):
            return replace(found, problem=f"{busy.directory} is missing: the trail speaks of it", trail=BUSY)
        return found
    beside = replace(_verify(busy), trail=BUSY)
    records, notes = found.records + beside.records, filter(None, (found.note, beside.note))
    return replace(found if beside.ok else beside, records=records, note="; ".join(notes))


def _verify(trail: Trail) -> Finding:
    try:
        key = trail.key()
        if key is None:
            lacks = "nothing can be checked" if trail.files() else "no audit trail was kept here"
            return Finding(records=0, problem=f"there is no key at {trail.key_path}: {lacks}")
        # Before the records: a server that runs adds records first and moves the head then.
        head = trail.head(key)
    except (Broken, StoreFailed) as error:
        return Finding(records=0, problem=str(error))
    if head is None:
        return Finding(records=0, problem=f"the head {trail.head_path} is missing: the end may have been cut off")
    return _walk(trail, key, head)


def _walk(trail: Trail, key: bytes, head: Head) -> Finding:
    end, count, note = head.begins, 0, ""
    for path, number, line in _lines(trail, head.begins):
        where = f"{path.name}:{number}"
        if not line.endswith(b"\n"):
            note = f"{where} is not finished: a write was cut short, and the next start of the server mends it"
            break
        try:
            end = check(line, after=end, key=key)
        except Broken as error:
            return Finding(records=count, problem=f"the record after {end.seq}: {error}", where=where)
        if json.loads(line).get("rpc") == HEAD_LOST:
            return Finding(records=count, problem=f"record {end.seq}: the head was lost before it", where=where)
        count += 1
    if end.seq < head.ends.seq:
        return Finding(
            records=count,
            problem=f"records {end.seq + 1} to {head.ends.seq} are missing: the end was cut off",
            note=note,
        )
    return Finding(records=count, note=note)


def records(data_dir: Path) -> Iterator[Fields]:
    """What can be read of both trails, oldest first, whether it is whole or not."""
    return heapq.merge(*(_records(Trail(data_dir, name)) for name in (MAIN, BUSY)), key=_time)


def _time(record: Fields) -> float:
    time = record.get("time")
    return float(time) if isinstance(time, int | float) else 0.0


def _records(trail: Trail) -> Iterator[Fields]:
    for _, _, line in _lines(trail, BEGIN):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _lines(trail: Trail, begins: End) -> Iterator[tuple[Path, int, bytes]]:
    for path in trail.files():
        if first_seq(path) <= begins.seq:
            continue  # the server was about to remove it
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield path, number, line
