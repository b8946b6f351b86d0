"""One task: what was asked, what has become of it, and how to follow it from any point.

A record is the truth and events are read off it: a follower holds a `Mark`, how far it has seen, and gets whatever is
beyond it. So a follower may come, go, be slow or come back, and the task neither waits for it nor queues anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import dataclass

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from k8e.a2a.outputs import PIECE_BYTES, Output

__all__ = [
    "HISTORY_BYTES",
    "HISTORY_MESSAGES",
    "OUTPUT_BYTES",
    "RESTING",
    "TERMINAL",
    "WAITING",
    "Mark",
    "Record",
    "Update",
]

OUTPUT_BYTES = 10 * 1024 * 1024
"""What is kept of one task's output, both streams together."""
HISTORY_MESSAGES = 32
"""Of one task: whoever is still not understood begins another one."""
HISTORY_BYTES = 16 * 1024 * 1024
"""Of one task's messages together; one that is longer can only begin a task."""
PACE_S = 0.02
"""A little more may come in this time; so a program that prints in drops makes no flood of events."""

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
RESTING = TERMINAL | {TaskState.TASK_STATE_INPUT_REQUIRED}
"""Nothing more happens by itself."""
WAITING = RESTING | {TaskState.TASK_STATE_AUTH_REQUIRED}
"""Somebody else has to do something."""

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


@dataclass(frozen=True, slots=True)
class Mark:
    """How far somebody has seen a task."""

    statuses: int = 0
    artifacts: int = 0
    stdout: int = 0
    stderr: int = 0
    ended: frozenset[str] = frozenset()
    """Streams whose end was told."""


class Record:
    def __init__(self, *, owner: str, context_id: str, message: Message) -> None:
        self.owner = owner
        self.context_id = context_id
        self.task_id = str(uuid.uuid4())
        self.artifacts: list[Artifact] = []
        self._outputs = {"stdout": Output("stdout"), "stderr": Output("stderr")}
        self._statuses: list[TaskStatus] = []
        self._history = [self._heard(message)]
        self._said = self._history[0].ByteSize()
        self._held = 0
        self._changed = asyncio.Event()
        self.become(TaskState.TASK_STATE_SUBMITTED)

    @property
    def state(self) -> TaskState:
        return self.status.state

    @property
    def status(self) -> TaskStatus:
        return self._statuses[-1]

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_cut(self) -> bool:
        """Whether output was lost for want of room."""
        return any(output.is_cut for output in self._outputs.values())

    def printed(self) -> int:
        """Bytes of output that are kept."""
        return sum(map(len, self._outputs.values()))

    def size(self) -> int:
        """Bytes that it holds, nearly."""
        return self.printed() + self._said + self._held

    def hear(self, message: Message) -> bool:
        """Keep what was said; false where that is more than one task may hold, and then it was not heard."""
        heard = self._heard(message)
        said = self._said + heard.ByteSize()
        if len(self._history) >= HISTORY_MESSAGES or said > HISTORY_BYTES:
            return False
        self._history.append(heard)
        self._said = said
        return True

    def become(self, state: TaskState, text: str = "", about: Mapping[str, str] | None = None) -> None:
        """Go on to another state, with a word to the caller and data for its program; what is over stays as it is."""
        if self._statuses and (self.is_over or (state == self.state and not text)):
            return
        status = TaskStatus(state=state)
        status.timestamp.GetCurrentTime()
        if text:
            status.message.CopyFrom(self._word(text, about))
        if state in TERMINAL:
            for output in self._outputs.values():
                output.close(room=self._room())
        self._statuses.append(status)
        self._held += status.ByteSize()
        self._tell()

    def print(self, stream: str, data: bytes) -> None:
        self._outputs[stream].add(data, room=self._room())
        self._tell()

    def attach(self, artifact: Artifact) -> None:
        self.artifacts.append(artifact)
        self._held += artifact.ByteSize()
        self._tell()

    def snapshot(self, *, with_artifacts: bool = True) -> Task:
        """The task as it is now."""
        task = Task(id=self.task_id, context_id=self.context_id, status=self.status, history=self._history)
        if with_artifacts:
            printed = (output for output in self._outputs.values() if len(output))
            task.artifacts.extend(_text_artifact(output.name, output.text()) for output in printed)
            task.artifacts.extend(self.artifacts)
        return task

    def mark(self) -> Mark:
        """Where a snapshot taken now ends."""
        return Mark(
            statuses=len(self._statuses),
            artifacts=len(self.artifacts),
            stdout=len(self._outputs["stdout"]),
            stderr=len(self._outputs["stderr"]),
            ended=frozenset(name for name, output in self._outputs.items() if output.is_closed),
        )

    async def follow(self, mark: Mark) -> AsyncIterator[Update]:
        """What happens beyond a mark, until the task rests."""
        while True:
            changed = self._changed
            update, mark = self.after(mark)
            if update is None:
                if self.state in RESTING:
                    return
                await changed.wait()
                continue
            yield update
            if isinstance(update, TaskArtifactUpdateEvent) and update.ByteSize() < PIECE_BYTES:
                await self._let_more_come()

    async def rest(self, states: Set[TaskState] = RESTING) -> None:
        """Wait until nothing more happens by itself."""
        while self.state not in states:
            await self._changed.wait()

    def after(self, mark: Mark) -> tuple[Update | None, Mark]:
        """The next thing beyond a mark; the end of a task is told last, whatever was seen of it before."""
        waiting = self._statuses[mark.statuses] if mark.statuses < len(self._statuses) else None
        if waiting is not None and waiting.state not in RESTING:
            return self._status(mark)
        for name, output in self._outputs.items():
            offset: int = getattr(mark, name)
            piece = output.piece(offset)
            is_last = output.is_closed and offset + len(piece) == len(output)
            if piece or (is_last and offset and name not in mark.ended):
                ended = mark.ended | {name} if is_last else mark.ended
                event = self._artifact(_text_artifact(name, piece.decode()), append=offset > 0, last_chunk=is_last)
                return event, dataclasses.replace(mark, **{name: offset + len(piece)}, ended=ended)
        if mark.artifacts < len(self.artifacts):
            event = self._artifact(self.artifacts[mark.artifacts], append=False, last_chunk=True)
            return event, dataclasses.replace(mark, artifacts=mark.artifacts + 1)
        return (None, mark) if waiting is None else self._status(mark)

    def _status(self, mark: Mark) -> tuple[Update, Mark]:
        status = self._statuses[mark.statuses]
        event = TaskStatusUpdateEvent(task_id=self.task_id, context_id=self.context_id, status=status)
        return event, dataclasses.replace(mark, statuses=mark.statuses + 1)

    def _artifact(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=self.task_id, context_id=self.context_id, artifact=artifact, append=append, last_chunk=last_chunk
        )

    def _heard(self, message: Message) -> Message:
        """What is kept of a message: not the bytes of its files, those are in the workspace."""
        heard = Message()
        heard.CopyFrom(message)
        heard.task_id, heard.context_id = self.task_id, self.context_id
        for part in heard.parts:
            if part.WhichOneof("content") == "raw":
                part.raw = b""
        return heard

    def _word(self, text: str, about: Mapping[str, str] | None) -> Message:
        parts = [Part(text=text)]
        if about:
            parts.append(Part(data=ParseDict(dict(about), Value())))
        return Message(
            message_id=str(uuid.uuid4()),
            role=Role.ROLE_AGENT,
            task_id=self.task_id,
            context_id=self.context_id,
            parts=parts,
        )

    def _room(self) -> int:
        return OUTPUT_BYTES - self.printed()

    def _tell(self) -> None:
        # Everybody who waits holds the old event; who comes later waits for the next change.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _let_more_come(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PACE_S):
                await self.rest()


def _text_artifact(name: str, text: str) -> Artifact:
    return Artifact(artifact_id=name, name=name, parts=[Part(text=text, media_type="text/plain")])
