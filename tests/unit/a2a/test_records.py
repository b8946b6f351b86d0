"""A task is told completely to everybody who follows it, whenever they come and however slow they are."""

from __future__ import annotations

import asyncio

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from hypothesis import given
from hypothesis import strategies as st

from k8e.a2a.outputs import PIECE_BYTES, Output
from k8e.a2a.records import HISTORY_BYTES, HISTORY_MESSAGES, OUTPUT_BYTES, Mark, Record, Update

COMPLETED, WORKING = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_WORKING


def record() -> Record:
    asked = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="$ ls"), Part(raw=b"x" * 99, filename="a")])
    return Record(owner="uid:1", context_id="c", message=asked)


def artifact(name: str) -> Artifact:
    return Artifact(artifact_id=name, name=name, parts=[Part(text=name)])


def beyond(task: Record, mark: Mark) -> tuple[list[Update], Mark]:
    updates: list[Update] = []
    while True:
        update, mark = task.after(mark)
        if update is None:
            return updates, mark
        updates.append(update)


def printed(updates: list[Update], name: str) -> str:
    parts = [each.artifact for each in updates if isinstance(each, TaskArtifactUpdateEvent)]
    return "".join(each.parts[0].text for each in parts if each.artifact_id == name)


def test_the_end_is_told_last() -> None:
    task = record()
    task.become(WORKING)
    task.print("stdout", b"out")
    task.print("stderr", b"err")
    task.attach(artifact("file"))
    task.become(COMPLETED, "done")
    updates, _ = beyond(task, Mark())
    states = [each.status.state for each in updates if isinstance(each, TaskStatusUpdateEvent)]
    assert states == [TaskState.TASK_STATE_SUBMITTED, WORKING, COMPLETED]
    kinds = [each.artifact.artifact_id for each in updates if isinstance(each, TaskArtifactUpdateEvent)]
    assert kinds == ["stdout", "stderr", "file"]
    assert isinstance(updates[-1], TaskStatusUpdateEvent)
    assert updates[-1].status.message.parts[0].text == "done"


def test_what_is_over_stays_as_it_is() -> None:
    task = record()
    task.become(COMPLETED)
    task.become(TaskState.TASK_STATE_CANCELED)
    assert task.state == COMPLETED


def test_a_state_is_told_once_unless_there_is_something_to_say() -> None:
    task = record()
    for text in ("", "", "look"):
        task.become(WORKING, text)
    told, _ = beyond(task, Mark())
    assert [each.status.state for each in told if isinstance(each, TaskStatusUpdateEvent)][1:] == [WORKING, WORKING]


def test_a_stream_that_was_begun_is_said_to_end() -> None:
    task = record()
    task.become(WORKING)
    task.print("stdout", b"a")
    seen, mark = beyond(task, Mark())
    assert not any(isinstance(each, TaskArtifactUpdateEvent) and each.last_chunk for each in seen)
    task.become(COMPLETED)
    rest, _ = beyond(task, mark)
    ends = [each for each in rest if isinstance(each, TaskArtifactUpdateEvent)]
    assert [(each.artifact.artifact_id, each.append, each.last_chunk) for each in ends] == [("stdout", True, True)]


steps = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=50)), max_size=20)


@given(steps, st.lists(st.integers(0, 20), max_size=4))
def test_whoever_looks_whenever_gets_every_byte_once_and_in_order(
    printing: list[tuple[str, bytes]], looks: list[int]
) -> None:
    task, mark = record(), Mark()
    seen: list[Update] = []
    for step, (stream, data) in enumerate(printing):
        task.print(stream, data)
        if step in looks:
            more, mark = beyond(task, mark)
            seen += more
    task.become(COMPLETED)
    more, _ = beyond(task, mark)
    seen += more
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data in printing if stream == name).decode("utf-8", "replace")
        assert printed(seen, name) == whole
        told = [
            each for each in seen if isinstance(each, TaskArtifactUpdateEvent) and each.artifact.artifact_id == name
        ]
        assert [each.append for each in told] == [each is not told[0] for each in told]
        assert [each.last_chunk for each in told] == [each is told[-1] for each in told]
        stored = {each.artifact_id: each.parts[0].text for each in task.snapshot().artifacts}
        assert stored.get(name, "") == whole


@given(steps, st.integers(0, 20))
def test_a_snapshot_and_what_follows_are_the_whole(printing: list[tuple[str, bytes]], joins: int) -> None:
    task = record()
    for stream, data in printing[:joins]:
        task.print(stream, data)
    before, mark = task.snapshot(), task.mark()
    for stream, data in printing[joins:]:
        task.print(stream, data)
    task.become(COMPLETED)
    after, _ = beyond(task, mark)
    for name in ("stdout", "stderr"):
        begun = {each.artifact_id: each.parts[0].text for each in before.artifacts}.get(name, "")
        whole = {each.artifact_id: each.parts[0].text for each in task.snapshot().artifacts}.get(name, "")
        assert begun + printed(after, name) == whole


def test_output_is_kept_up_to_a_bound_and_its_loss_is_known() -> None:
    full, lost = record(), record()
    full.print("stdout", b"a" * OUTPUT_BYTES)
    lost.print("stdout", b"a" * (OUTPUT_BYTES - 1))
    lost.print("stderr", "é".encode())
    lost.print("stderr", b"b")
    assert (full.is_cut, lost.is_cut) == (False, True)
    assert [each.name for each in lost.snapshot().artifacts] == ["stdout"]
    assert len(lost.snapshot().artifacts[0].parts[0].text) == OUTPUT_BYTES - 1


@given(st.lists(st.binary(max_size=9)), st.integers(0, 40))
def test_an_output_is_whole_characters_within_its_room(pieces: list[bytes], room: int) -> None:
    output = Output("stdout")
    for piece in pieces:
        output.add(piece, room=room - len(output))
    output.close(room=room - len(output))
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert whole.startswith(output.text())
    assert len(output) <= room or room <= 0
    assert output.is_cut is (output.text() != whole)


def test_a_piece_is_bounded_and_cuts_no_character() -> None:
    output = Output("stdout")
    output.add("é".encode() * PIECE_BYTES, room=OUTPUT_BYTES)
    output.add(b"x", room=OUTPUT_BYTES)
    offset, pieces = 0, []
    while piece := output.piece(offset):
        assert len(piece) <= PIECE_BYTES
        pieces.append(piece.decode())
        offset += len(piece)
    assert "".join(pieces) == "é" * PIECE_BYTES + "x"


def test_the_bytes_of_files_that_came_along_are_not_kept_twice() -> None:
    heard = record().snapshot().history[0]
    assert (heard.parts[1].filename, heard.parts[1].raw) == ("a", b"")


def said(size: int) -> Message:
    return Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x" * size)])


def test_what_is_said_in_one_task_is_bounded_by_number() -> None:
    task = record()
    heard = [task.hear(said(1)) for _ in range(HISTORY_MESSAGES)]
    assert heard == [True] * (HISTORY_MESSAGES - 1) + [False]
    assert len(task.snapshot().history) == HISTORY_MESSAGES


def test_what_is_said_in_one_task_is_bounded_by_size_and_files_do_not_count() -> None:
    task, quarter = record(), HISTORY_BYTES // 4
    file = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(raw=b"x" * quarter, filename="a")])
    heard = [task.hear(each) for each in (said(quarter), file, said(quarter), said(quarter), said(quarter), said(1))]
    assert heard == [True, True, True, True, False, True]
    assert sum(each.ByteSize() for each in task.snapshot().history) <= HISTORY_BYTES


def test_everything_that_a_task_holds_counts() -> None:
    task = record()
    task.hear(said(1000))
    task.print("stdout", b"x" * 1000)
    task.attach(artifact("y" * 1000))
    before = task.size()
    assert before > 4000
    task.become(WORKING, "z" * 1000)
    assert task.size() - before > 1000


async def test_a_follower_is_woken_and_leaves_when_the_task_rests() -> None:
    task = record()
    got: list[Update] = []

    async def follow() -> None:
        got.extend([update async for update in task.follow(task.mark())])

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow(), name="follower")
        resting = group.create_task(task.rest(), name="waiter")
        await asyncio.sleep(0)
        task.become(WORKING)
        task.print("stdout", b"1")
        await asyncio.sleep(0)
        assert not following.done()
        assert not resting.done()
        task.become(COMPLETED)
    assert printed(got, "stdout") == "1"
    assert isinstance(got[-1], TaskStatusUpdateEvent)
    assert got[-1].status.state == COMPLETED
