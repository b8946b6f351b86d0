"""A call may have to wait for a person at a gate; then the task says so, and which question it is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from dataclasses import dataclass

from a2a.types import TaskState

from k8e.a2a.asks import Program, Upload
from k8e.a2a.records import Record
from k8e.client.aio import AsyncSandboxClient
from k8e.client.errors import SandboxError
from k8e.client.people import Approval

__all__ = ["Vigil", "is_about"]

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Before the first look at what waits for an answer, and between two while something of ours does."""
RARELY_S = 8.0
"""Between two looks at most: a call is asked about before anything of it is done, or never."""


@dataclass(slots=True, kw_only=True)
class Vigil:
    """Over one call of a task, whatever gates its session has: those of the server may be others since it was made."""

    client: AsyncSandboxClient
    record: Record
    session_id: str
    wish: Program | Upload
    printed: int
    """How much the task had printed before: from then on, one that prints does not wait."""
    told: str = ""
    """The question that the task's status names."""

    async def keep(self) -> None:
        """Until it is cancelled; the task goes on also without."""
        pause_s = LOOK_S
        try:
            while self.record.printed() == self.printed:
                await asyncio.sleep(pause_s)
                with contextlib.suppress(SandboxError):
                    self._say(await self._question())
                pause_s = LOOK_S if self.told else min(2 * pause_s, RARELY_S)
            self.end()
        except Exception:  # noqa: BLE001 - the edge: it would take every other task along
            _log.exception("nobody looks for questions any more", extra={"task": self.record.task_id})

    def end(self) -> None:
        """Nobody is waited for any more."""
        self._say(None)

    async def _question(self) -> Approval | None:
        for each in await self.client.approvals():
            if each.is_gate and each.session_id == self.session_id and is_about(each.action, self.wish):
                return each
        return None

    def _say(self, question: Approval | None) -> None:
        was_told, self.told = self.told, question.approval_id if question else ""
        if self.told == was_told:
            return
        if question is None:
            self.record.become(TaskState.TASK_STATE_WORKING)
            return
        text = (
            f"waits for a person's approval: {question.action}. Whoever may decide runs "
            f"`k8e sandbox approve {question.approval_id}`; the task then goes on by itself"
        )
        about = {"approval_id": question.approval_id, "action": question.action}
        self.record.become(TaskState.TASK_STATE_AUTH_REQUIRED, text, about)


def is_about(action: str, wish: Program | Upload) -> bool:
    """Whether a question is about this: it has the digest of a file's content, and that of a program on a line of its own."""
    if isinstance(wish, Upload):
        return action.startswith("write ") and hashlib.sha256(wish.data).hexdigest() in action
    digest = hashlib.sha256(wish.code.encode()).hexdigest()
    return any(line.startswith("  text: ") and line.endswith(f" {digest}") for line in action.split("\n"))
