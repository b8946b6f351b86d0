"""The tasks of everybody, each visible to its owner alone, and bounded: what is over makes room for what is new."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import ListTasksCursor, decode_list_tasks_cursor, encode_list_tasks_cursor

from k8e.a2a.records import RESTING, Record

__all__ = ["Bounds", "Shelf"]

PAGE_BYTES = 16 * 1024 * 1024
"""A page with artifacts ends early rather than be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is kept."""

    active_tasks: int = 16
    """Of one owner at a time; further ones are rejected."""
    tasks: int = 256
    """Of one owner, with those that are over."""
    owner_bytes: int = 64 * 1024 * 1024
    all_bytes: int = 512 * 1024 * 1024


class Shelf:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._records: dict[tuple[str, str], Record] = {}
        """Oldest first."""

    def add(self, record: Record) -> None:
        self._records[record.owner, record.task_id] = record
        self.trim(record.owner)

    def find(self, owner: str, task_id: str) -> Record | None:
        """Somebody else's is not there."""
        return self._records.get((owner, task_id))

    def has_room(self, owner: str) -> bool:
        """Whether another task of this owner may run."""
        return sum(record.state not in RESTING for record in self._of(owner)) < self.bounds.active_tasks

    def trim(self, owner: str) -> None:
        """Forget the oldest that nobody works on, of this owner and then of all, until the rest fits."""
        self._forget(list(self._of(owner)), tasks=self.bounds.tasks, most_bytes=self.bounds.owner_bytes)
        self._forget(list(self._records.values()), tasks=None, most_bytes=self.bounds.all_bytes)

    def page(self, owner: str, request: ListTasksRequest) -> ListTasksResponse:
        """The owner's tasks that are asked for, the last changed first. Raises: InvalidParamsError."""
        found = sorted((record for record in self._of(owner) if _is_wanted(record, request)), key=_key, reverse=True)
        start = 0
        if request.page_token:
            cursor = decode_list_tasks_cursor(request.page_token)
            if cursor is None:
                raise InvalidParamsError(message="page_token: not one of ours")
            start = next((i for i, record in enumerate(found) if _key(record) < cursor.sort_key()), len(found))
        size = request.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        chosen = _fitting(found[start : start + size], request)
        rest = start + len(chosen) < len(found)
        return ListTasksResponse(
            tasks=[record.snapshot(with_artifacts=request.include_artifacts) for record in chosen],
            next_page_token=encode_list_tasks_cursor(_cursor(chosen[-1])) if rest and chosen else "",
            page_size=size,
            total_size=len(found),
        )

    def _of(self, owner: str) -> Iterator[Record]:
        return (record for record in self._records.values() if record.owner == owner)

    def _forget(self, records: Sequence[Record], *, tasks: int | None, most_bytes: int) -> None:
        count, held = len(records), sum(record.size() for record in records)
        for record in records:
            if held <= most_bytes and (tasks is None or count <= tasks):
                return
            if record.state in RESTING:
                del self._records[record.owner, record.task_id]
                count, held = count - 1, held - record.size()


def _is_wanted(record: Record, request: ListTasksRequest) -> bool:
    return (
        (not request.context_id or record.context_id == request.context_id)
        and (not request.status or record.state == request.status)
        and (
            not request.HasField("status_timestamp_after")
            or record.status.timestamp.ToNanoseconds() >= request.status_timestamp_after.ToNanoseconds()
        )
    )


def _cursor(record: Record) -> ListTasksCursor:
    return ListTasksCursor(timestamp_ns=record.status.timestamp.ToNanoseconds(), task_id=record.task_id)


def _key(record: Record) -> tuple[bool, int, str]:
    return _cursor(record).sort_key()


def _fitting(records: Sequence[Record], request: ListTasksRequest) -> Sequence[Record]:
    """As many as one answer should hold; always one, or nobody would ever see it."""
    if not request.include_artifacts:
        return records
    held = itertools.accumulate(record.size() for record in records)
    return records[: max(1, sum(size <= PAGE_BYTES for size in held))]
