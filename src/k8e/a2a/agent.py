"""The agent: it begins tasks, works on them whoever listens, and knows them all. What it works on, it owns."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.types import Message, TaskState

from k8e.a2a.asks import Unusable, read
from k8e.a2a.contexts import Contexts
from k8e.a2a.errands import Errand
from k8e.a2a.records import Record
from k8e.a2a.shelf import Bounds, Shelf
from k8e.http_visitor import Visitor

__all__ = ["IDLE_S", "Agent"]

IDLE_S = 900.0
"""How long a context's session lives unused."""


class Agent:
    """`open` one."""

    def __init__(self, tasks: asyncio.TaskGroup, *, idle_s: float, bounds: Bounds) -> None:
        self.shelf = Shelf(bounds)
        self._contexts = Contexts(idle_s=idle_s)
        self._tasks = tasks
        self._running: dict[str, asyncio.Task[None]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, *, idle_s: float = IDLE_S, bounds: Bounds | None = None) -> AsyncIterator[Agent]:
        """At the end every command that still runs is killed; sessions end by themselves when they are idle."""
        async with asyncio.TaskGroup() as tasks:
            agent = cls(tasks, idle_s=idle_s, bounds=bounds or Bounds())
            try:
                yield agent
            finally:
                agent.leave()

    def leave(self) -> None:
        """Kill whatever runs, so that whoever listens hears the end."""
        for running in list(self._running.values()):
            running.cancel()

    def begin(self, visitor: Visitor, message: Message) -> Record:
        """A new task, in the message's context or a new one."""
        context_id = message.context_id or str(uuid.uuid4())
        record = Record(owner=visitor.owner, context_id=context_id, message=message)
        trouble = self.crowded(visitor.owner)
        self.shelf.add(record)
        if trouble:
            record.become(TaskState.TASK_STATE_REJECTED, trouble)
        else:
            self._work(visitor, record, message)
        return record

    def go_on(self, visitor: Visitor, record: Record, message: Message) -> str:
        """A further message of a task that waits for one; or why it was not taken."""
        if trouble := self.crowded(record.owner):
            return trouble
        if not record.hear(message):
            return "the task has too many or too long messages: send one with its contextId alone, which begins another"
        # At once: whoever waits for the task to rest must not take its last rest for the next one.
        record.become(TaskState.TASK_STATE_WORKING)
        self._work(visitor, record, message)
        self.shelf.trim(record.owner)
        return ""

    def crowded(self, owner: str) -> str:
        """Why no further task of this owner may run now."""
        if self.shelf.has_room(owner):
            return ""
        return f"{self.shelf.bounds.active_tasks} of your tasks run already; wait for one or cancel it"

    def cancel(self, record: Record) -> None:
        """Kill what it runs; the record says when that is done."""
        if (running := self._running.get(record.task_id)) is not None:
            running.cancel()
        else:
            record.become(TaskState.TASK_STATE_CANCELED, "canceled")

    def _work(self, visitor: Visitor, record: Record, message: Message) -> None:
        ask = read(message)
        if isinstance(ask, Unusable):
            state = TaskState.TASK_STATE_INPUT_REQUIRED if ask.is_open else TaskState.TASK_STATE_REJECTED
            record.become(state, ask.text)
            return
        errand = Errand(client=visitor.client, contexts=self._contexts, tasks=self._tasks, record=record, ask=ask)
        running = self._tasks.create_task(errand.run(), name=f"a2a task {record.task_id}")
        self._running[record.task_id] = running
        running.add_done_callback(lambda _: self._ended(record))

    def _ended(self, record: Record) -> None:
        del self._running[record.task_id]
        # One that was cancelled before its first step had no word in this.
        record.become(TaskState.TASK_STATE_CANCELED, "canceled")
        self.shelf.trim(record.owner)
