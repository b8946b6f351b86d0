"""Questions to a person before something is done: asked by one identity, answered by another, never by the same.

A question and its answer are on disk before anybody sees them, so whoever waits may come back after a restart. A
question ends with its time or its session, whichever is first; what has ended is never answered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k8e.engine.questions import MAX_QUESTION_BYTES
from k8e.engine.settings import Quotas
from k8e.engine.store import Change, Kind, Store
from k8e.errors import Conflict, Denied, Exhausted, InvalidSpec, NotFound
from k8e.model import ApprovalId, ApprovalStatus, OwnerId, SandboxId, SessionId, approval_place
from k8e.random_ids import new_id
from k8e.tasks import Tasks
from k8e.visible import LINES, first_unseen

__all__ = ["APPROVALS", "MAX_TEXT_BYTES", "Approval", "Approvals", "check_text", "in_order"]

MAX_TEXT_BYTES: Final = 4096
MAX_TEXT_LINES: Final = 60
_HISTORY: Final = 1000
"""Answered questions that are kept per owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One question as it stands; `at` says how it stands later."""

    approval_id: ApprovalId
    owner: OwnerId
    session_id: SessionId
    sandbox: SandboxId
    """A session's name can be used again; its sandbox never."""
    action: str
    asked_by: str
    asked_at: float
    expires_at: float
    status: ApprovalStatus = ApprovalStatus.PENDING
    decided_by: str = ""
    reason: str = ""
    decided_at: float = 0.0
    is_gate: bool = False
    """Asked by a call that waits for the answer, and for no longer than it does."""

    @property
    def is_pending(self) -> bool:
        return self.status is ApprovalStatus.PENDING

    def at(self, now: float) -> Approval:
        """The same with the time that has passed."""
        return self.expired(self.expires_at) if self.is_pending and now >= self.expires_at else self

    def expired(self, now: float) -> Approval:
        """The question as one that nobody can answer any more."""
        return dataclasses.replace(self, status=ApprovalStatus.EXPIRED, decided_at=now) if self.is_pending else self

    def decided(self, decided_by: str, *, approved: bool, reason: str, now: float) -> Approval:
        """The question with its answer; the same answer by the same identity again changes nothing.

        Raises: Denied to the one who asks, Conflict when it is answered or expired.
        """
        if decided_by == self.asked_by:
            raise Denied(
                f"{decided_by} asked for {self.approval_id} and cannot decide it: a person does, in a terminal on the "
                f"server's machine (k8e sandbox approve {self.approval_id}), or another identity, for example a key of "
                "the role approver"
            )
        current = self.at(now)
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.REJECTED
        if current.is_pending:
            return dataclasses.replace(current, status=status, decided_by=decided_by, reason=reason, decided_at=now)
        if current.status is ApprovalStatus.EXPIRED:
            raise Conflict(f"approval {self.approval_id} has expired: ask for it again")
        if (current.status, current.decided_by) != (status, decided_by):
            raise Conflict(f"approval {self.approval_id} is already {current.status} by {current.decided_by}")
        return current


_FINISHED: Final = tuple(status for status in ApprovalStatus if status is not ApprovalStatus.PENDING)
APPROVALS: Final = Kind(
    "approval",
    Approval,
    lambda record: (record.owner, record.approval_id),
    # One that waits is somebody's question; of one that has ended only the history knows.
    may_miss=lambda fields: fields.get("status") in _FINISHED,
)


class Approvals:
    """All questions of all owners, in a file of its own that is safe against power loss."""

    def __init__(
        self, path: Path, tasks: Tasks, quotas: Quotas, *, valid_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = Store(path, "approvals", survives_power_loss=True)
        self._tasks = tasks
        self._quotas = quotas
        self._valid_s = valid_s
        self._clock = clock
        self._by_owner: dict[OwnerId, dict[str, Approval]] = {}
        self._unwritten: set[str] = set()
        """Questions that nobody is shown yet: a server that is killed now would know nothing of them."""
        self._versions: dict[str, int] = {}
        """Of questions that wait, as they are on disk: what an answer is given to."""
        for stored in self._store.load(APPROVALS):
            self._remember(stored.record, stored.version)
        self._changed = asyncio.Event()

    def find(self, owner: OwnerId, approval_id: str) -> Approval:
        """The owner's own question. Raises: NotFound, also for one of somebody else's."""
        found = self._by_owner.get(owner, {}).get(approval_id)
        if found is None:
            raise NotFound("approval", approval_id)
        return found.at(self._clock())

    def of(self, owner: OwnerId | None, *, finished: bool) -> list[Approval]:
        """An owner's questions, or everybody's: those that wait, oldest first, then the `finished`, newest first."""
        asked = self._by_owner.values() if owner is None else [self._by_owner.get(owner, {})]
        found = in_order(each.at(self._clock()) for own in asked for each in own.values())
        shown = [each for each in found if each.approval_id not in self._unwritten]
        return [each for each in shown if finished or each.is_pending]

    async def ask(
        self,
        owner: OwnerId,
        session_id: SessionId,
        sandbox: SandboxId,
        *,
        asked_by: str,
        action: str,
        is_gate: bool = False,
    ) -> Approval:
        """Put a question; of a session that is not there yet, without its names. Raises: InvalidSpec, Exhausted, StoreFailed."""
        check_text(action, field="action", most_bytes=MAX_QUESTION_BYTES if is_gate else MAX_TEXT_BYTES)
        if not action.strip():
            raise InvalidSpec("say what is to be approved", field="action")
        self._check_quotas(owner, session_id)
        now = self._clock()
        asked = Approval(
            approval_id=ApprovalId(new_id(f"approval-{session_id}" if session_id else "approval")),
            owner=owner,
            session_id=session_id,
            sandbox=sandbox,
            action=action,
            asked_by=asked_by,
            asked_at=now,
            expires_at=now + self._valid_s,
            is_gate=is_gate,
        )
        # Known before it is written, so that its session's end, which may come meanwhile, finds it.
        self._remember(asked)
        self._unwritten.add(asked.approval_id)
        try:
            written = await self._store.commit(APPROVALS.put(asked), *self._forgotten(owner))
        except BaseException:
            # Nobody knows its id, so nobody will come for the answer.
            self._by_owner[owner].pop(asked.approval_id, None)
            self._store.post(_deleted(asked))
            raise
        finally:
            self._unwritten.discard(asked.approval_id)
        known = self.find(owner, asked.approval_id)
        if known.is_pending:
            self._versions[asked.approval_id] = written
        return known

    async def wait(self, owner: OwnerId, approval_id: str, *, timeout_s: float | None = None) -> Approval:
        """The question once it is answered or expired, or as it stands when the time is over. Raises: NotFound."""
        ends_at = self._clock() + timeout_s if timeout_s is not None else float("inf")
        while True:
            changed, current = self._changed, self.find(owner, approval_id)
            left_s = min(current.expires_at, ends_at) - self._clock()
            if not current.is_pending or left_s <= 0:
                return current
            try:
                async with asyncio.timeout(left_s):
                    await changed.wait()
            except TimeoutError:
                continue

    async def decide(
        self, owner: OwnerId, approval_id: str, *, decided_by: str, approved: bool, reason: str
    ) -> Approval:
        """Answer a question, once. Raises: NotFound, Denied, Conflict, InvalidSpec, StoreFailed."""
        check_text(reason, field="reason")
        work = self._decide(owner, approval_id, decided_by=decided_by, approved=approved, reason=reason)
        # Whoever goes away half-way leaves a whole answer or none.
        return await self._tasks.finish(work, name=f"decide {approval_id}")

    def withdraw(self, asked: Approval) -> Approval:
        """Whoever asked waits no more: the question ends, unless it is answered already. As it then is."""
        current = self._by_owner.get(asked.owner, {}).get(asked.approval_id, asked)
        self._expire([current])
        return self._by_owner[asked.owner].get(asked.approval_id, asked)

    def end(self, owner: OwnerId, sandbox: SandboxId) -> None:
        """A session ends, and with it what it asked."""
        self._expire(each for each in self._by_owner.get(owner, {}).values() if each.sandbox == sandbox)

    def keep_only(self, sandboxes: Collection[SandboxId]) -> None:
        """After a restart: what sessions asked that are no more has ended with them, and so has what a call waited for."""
        known = [each for mine in self._by_owner.values() for each in mine.values()]
        self._expire(each for each in known if each.is_gate or each.sandbox not in sandboxes)

    def close(self) -> None:
        self._store.close()

    async def _decide(
        self, owner: OwnerId, approval_id: str, *, decided_by: str, approved: bool, reason: str
    ) -> Approval:
        while True:
            current = self.find(owner, approval_id)
            decided = current.decided(decided_by, approved=approved, reason=reason, now=self._clock())
            if decided == current:
                return decided
            if (version := self._versions.get(approval_id)) is None:
                # Not on disk yet, so nobody has been shown it.
                raise NotFound("approval", approval_id)
            try:
                await self._store.commit(APPROVALS.put(decided, if_version=version))
            except Conflict:
                if self._versions.get(approval_id) == version:
                    # Nobody here has answered it.
                    self._reload(owner, approval_id)
                # Of two answers at once the second looks at the first.
                continue
            self._check_in_time(owner, approval_id)
            self._remember(decided)
            self._notify()
            return decided

    def _check_in_time(self, owner: OwnerId, approval_id: str) -> None:
        """Its time or its session may have ended while the disk was busy, and somebody was told so."""
        current = self.find(owner, approval_id)
        if not current.is_pending:
            self._store.post(APPROVALS.replace(current))
            raise Conflict(f"approval {approval_id} has expired: ask for it again")

    def _expire(self, ended: Iterable[Approval]) -> None:
        now = self._clock()
        for each in [each.at(now).expired(now) for each in ended if each.is_pending]:
            self._remember(each)
            self._store.post(APPROVALS.replace(each))
        self._notify()

    def _remember(self, approval: Approval, version: int | None = None) -> None:
        self._by_owner.setdefault(approval.owner, {})[approval.approval_id] = approval
        if approval.is_pending and version is not None:
            self._versions[approval.approval_id] = version
        else:
            self._versions.pop(approval.approval_id, None)

    def _reload(self, owner: OwnerId, approval_id: str) -> None:
        """Somebody else has changed it: from now on it is as it is on disk."""
        stored = self._store.get(APPROVALS, owner, approval_id)
        if stored is None:
            self._by_owner[owner].pop(approval_id, None)
            self._versions.pop(approval_id, None)
        else:
            self._remember(stored.record, stored.version)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check_quotas(self, owner: OwnerId, session_id: SessionId) -> None:
        now = self._clock()
        waiting = [known for each in self._by_owner.get(owner, {}).values() if (known := each.at(now)).is_pending]
        here = [each for each in waiting if each.session_id == session_id]
        for most, held in ((self._quotas.approvals_per_session, here), (self._quotas.approvals, waiting)):
            if len(held) >= most:
                wait_s = min(each.expires_at for each in held) - now
                raise Exhausted(
                    f"{len(held)} approvals already wait for a decision: decide one, or retry in {wait_s:.0f} s",
                    retry_after_s=max(wait_s, 0.0),
                )

    def _forgotten(self, owner: OwnerId) -> list[Change]:
        """The changes that keep an owner's history bounded."""
        finished = [each for each in self.of(owner, finished=True) if not each.is_pending]
        for each in finished[_HISTORY:]:
            del self._by_owner[owner][each.approval_id]
        return [_deleted(each) for each in finished[_HISTORY:]]


def in_order(approvals: Iterable[Approval]) -> list[Approval]:
    """Those that wait first, oldest first; then the others, newest first."""
    return sorted(
        approvals,
        key=lambda each: approval_place(
            is_pending=each.is_pending, asked_at=each.asked_at, approval_id=each.approval_id
        ),
    )


def check_text(text: str, *, field: str, most_bytes: int = MAX_TEXT_BYTES) -> str:
    """Text that a person sees exactly as it is, and at a glance. Raises: InvalidSpec.

    Characters that are not seen could show something else than is approved: move the cursor, hide a word, turn its
    direction. Many lines could push some of it off the screen.
    """
    if hidden := first_unseen(text, keep=LINES):
        name = unicodedata.name(hidden, "a control character")
        raise InvalidSpec(f"contains what cannot be seen: U+{ord(hidden):04X}, {name}; leave it out", field=field)
    if len(text.encode()) > most_bytes:
        raise InvalidSpec(f"is longer than {most_bytes} bytes: say it in short", field=field)
    if text.count("\n") >= MAX_TEXT_LINES:
        raise InvalidSpec(f"has more than {MAX_TEXT_LINES} lines: say it in short", field=field)
    return text


def _deleted(approval: Approval) -> Change:
    return APPROVALS.delete(*APPROVALS.key(approval))
