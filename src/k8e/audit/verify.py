"""Reading the trail: whether it is whole, and what it says. Works beside a running server and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k8e.audit.chain import BEGIN, Broken, End, Fields, Head, check
from k8e.audit.files import Trail, first_seq
from k8e.audit.journal import HEAD_LOST
from k8e.errors import StoreFailed

__all__ = ["Finding", "records", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`problem` is empty when the trail is whole."""

    records: int
    problem: str = ""
    where: str = ""
    """file:line of the record that is wrong."""
    note: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def verify(data_dir: Path) -> Finding:
    """Check every record that is kept, and the head. Raises: OSError when it cannot be read."""
    trail = Trail(data_dir)
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
    """What can be read, oldest first, whether it is whole or not."""
    for _, _, line in _lines(Trail(data_dir), BEGIN):
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
