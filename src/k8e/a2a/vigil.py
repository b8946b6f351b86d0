"""A gated session's calls may wait for a person; then the task says so, and which question it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from a2a.types import TaskState

from k8e.a2a.records import Record
from k8e.client.aio import AsyncSandboxClient
from k8e.client.errors import SandboxError
from k8e.client.people import Approval

__all__ = ["Vigil"]

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Between two looks at what waits for an answer."""


@dataclass(slots=True, kw_only=True)
class Vigil:
    """Over one task, while it is worked on."""

    client: AsyncSandboxClient
    record: Record
    session_id: str
    printed: int = 0
    """How much the task has printed at the last look: one that goes on printing does not wait."""

    async def keep(self) -> None:
        """Until it is cancelled; the task goes on also without."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(SandboxError):
                    self._say(await self._question())
        except Exception:  # noqa: BLE001 - the edge: it would take every other task along
            _log.exception("nobody looks for questions any more", extra={"task": self.record.task_id})

    async def _question(self) -> Approval | None:
        printed, self.printed = self.printed, self.record.printed()
        if printed != self.printed:
            return None
        pending = await self.client.approvals()
        return next((each for each in pending if each.session_id == self.session_id), None)

    def _say(self, question: Approval | None) -> None:
        is_told = self.record.state == TaskState.TASK_STATE_AUTH_REQUIRED
        if question is not None and not is_told:
            text = (
                f"waits for a person's approval: {question.action}. Whoever may decide runs "
                f"`k8e sandbox approve {question.approval_id}`; the task then goes on by itself"
            )
            about = {"approval_id": question.approval_id, "action": question.action}
            self.record.become(TaskState.TASK_STATE_AUTH_REQUIRED, text, about)
        elif question is None and is_told:
            self.record.become(TaskState.TASK_STATE_WORKING)
