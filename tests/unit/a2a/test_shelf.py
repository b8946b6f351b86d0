"""Tasks are visible to their owner alone, and what is over makes room."""

from __future__ import annotations

import pytest
from a2a.types import ListTasksRequest, Message, Part, Role, TaskState
from a2a.utils.errors import InvalidParamsError

from k8e.a2a.contexts import session_id_of
from k8e.a2a.records import Record
from k8e.a2a.shelf import Bounds, Shelf


def record(owner: str = "a", context_id: str = "c", *, is_over: bool = True, size: int = 0) -> Record:
    asked = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="$ ls")])
    made = Record(owner=owner, context_id=context_id, message=asked)
    made.print("stdout", b"x" * size)
    if is_over:
        made.become(TaskState.TASK_STATE_COMPLETED)
    return made


def filled(*records: Record, bounds: Bounds | None = None) -> Shelf:
    shelf = Shelf(bounds or Bounds())
    for each in records:
        shelf.add(each)
    return shelf


def ids(shelf: Shelf, owner: str = "a", **wanted: object) -> list[str]:
    return [task.id for task in shelf.page(owner, ListTasksRequest(**wanted)).tasks]  # type: ignore[arg-type]


def test_a_task_is_there_for_its_owner_and_for_nobody_else() -> None:
    mine, theirs = record("a"), record("b")
    shelf = filled(mine, theirs)
    assert shelf.find("a", mine.task_id) is mine
    assert shelf.find("b", mine.task_id) is None
    assert ids(shelf, "a") == [mine.task_id]
    assert ids(shelf, "b") == [theirs.task_id]


def test_the_oldest_that_is_over_goes_first_and_what_runs_stays() -> None:
    running, old, new = record(is_over=False), record(), record()
    other = record("b")
    shelf = filled(running, other, old, new, bounds=Bounds(tasks=2))
    assert shelf.find("a", running.task_id) is running
    assert shelf.find("a", old.task_id) is None
    assert shelf.find("a", new.task_id) is new
    assert shelf.find("b", other.task_id) is other


def test_bytes_are_bounded_for_one_owner_and_for_all() -> None:
    first, second = record(size=600), record(size=600)
    assert filled(first, bounds=Bounds(owner_bytes=1000)).find("a", first.task_id)
    shelf = filled(first, second, bounds=Bounds(owner_bytes=1000))
    assert shelf.find("a", first.task_id) is None
    assert shelf.find("a", second.task_id) is second
    other = record("b", size=600)
    shelf = filled(second, other, bounds=Bounds(all_bytes=1000))
    assert shelf.find("a", second.task_id) is None
    assert shelf.find("b", other.task_id) is other


def test_only_so_many_run_at_a_time() -> None:
    shelf = filled(record(is_over=False), record(), bounds=Bounds(active_tasks=2))
    assert shelf.has_room("a")
    shelf.add(record(is_over=False))
    assert not shelf.has_room("a")
    assert shelf.has_room("b")


def test_pages_are_the_whole_without_repetition() -> None:
    records = [record() for _ in range(7)]
    shelf = filled(*records)
    token, got = "", list[str]()
    for _ in range(4):
        page = shelf.page("a", ListTasksRequest(page_size=2, page_token=token))
        assert (page.total_size, page.page_size) == (7, 2)
        got += [task.id for task in page.tasks]
        token = page.next_page_token
    assert token == ""
    assert sorted(got) == sorted(each.task_id for each in records)


def test_a_page_that_would_be_huge_ends_early() -> None:
    records = [record(size=9_000_000) for _ in range(3)]
    shelf = filled(*records)
    page = shelf.page("a", ListTasksRequest(include_artifacts=True))
    assert len(page.tasks) == 1
    assert page.next_page_token
    assert len(ids(shelf)) == 3


def test_a_list_is_filtered_by_context_and_state() -> None:
    running, done = record(context_id="x", is_over=False), record(context_id="y")
    shelf = filled(running, done)
    assert ids(shelf, context_id="x") == [running.task_id]
    assert ids(shelf, status=TaskState.TASK_STATE_COMPLETED) == [done.task_id]
    assert ids(shelf, status_timestamp_after=done.status.timestamp) == [done.task_id]
    with pytest.raises(InvalidParamsError):
        shelf.page("a", ListTasksRequest(page_token="nonsense"))


def test_every_context_has_a_session_id_that_the_server_takes() -> None:
    names = {session_id_of(each) for each in ("c", "C", "c ", "/../x", "é" * 200)}
    assert len(names) == 5
    assert all(len(name) == 28 and name.startswith("a2a-") and name[4:].isalnum() for name in names)
