"""Sessions: who holds which sandbox, from the claim to the last trace of it.

Every step is written down before it is visible, and every step can be repeated, so a crash at any point is
mended by the next start. What a request waits for is owned by the engine, so a caller that goes away half-way
leaves neither half a session nor half a removal.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from k8e.engine import brokering, ceilings, labels, lists
from k8e.engine.boxes import Box
from k8e.engine.egress import Egress
from k8e.engine.events import EventLog
from k8e.engine.file_worker import FileWorker
from k8e.engine.ids import check_client_id, check_tenant
from k8e.engine.observing import UNOBSERVED, Observer
from k8e.engine.quotas import CreateRates
from k8e.engine.records import SESSIONS
from k8e.engine.sandbox_watch import SandboxWatch
from k8e.engine.secrets import Secrets, check_references
from k8e.engine.session import NEVER, Session, deadline
from k8e.engine.settings import EngineSettings
from k8e.engine.store import Change, Store
from k8e.engine.substrate import Substrate
from k8e.engine.transcript import Transcript
from k8e.engine.workspaces import Workspaces
from k8e.errors import (
    Conflict,
    Denied,
    DiskFull,
    Exhausted,
    HostUnsupported,
    K8eError,
    NotFound,
    SandboxFailed,
    StoreFailed,
)
from k8e.lifecycle import Phase
from k8e.model import HOST_IMAGE, Claim, Death, OwnerId, SandboxId, SessionId, SessionSpec
from k8e.random_ids import new_id
from k8e.tasks import Tasks, outcome_of

__all__ = ["Admit", "Sessions"]

_log = logging.getLogger(__name__)

_CLAIM_TRIES: Final = 3
_AGAIN_S: Final = 30.0
_AT_ONCE: Final = 64
"""Sessions in one commit: others have their turn before the next."""

Admit = Callable[[SessionSpec], Awaitable[None]]
"""Whether a session may be made like this; waits where a person has to say so. Raises: Denied."""


class Sessions:
    def __init__(
        self,
        settings: EngineSettings,
        store: Store,
        events: EventLog,
        substrate: Substrate,
        watch: SandboxWatch,
        workspaces: Workspaces,
        secrets: Secrets,
        egress: Egress,
        tasks: Tasks,
    ) -> None:
        self.settings = settings
        self._store = store
        self._events = events
        self._substrate = substrate
        self._watch = watch
        watch.out_of_memory = self._met_memory_limit
        self._workspaces = workspaces
        self._secrets = secrets
        self._egress = egress
        self.brokering = brokering.Brokering(secrets, substrate.set_grants, settings.egress)
        self._tasks = tasks
        self.files = FileWorker()
        """Writes and reads what is kept of sessions on the host, in order."""
        self.gateway = ""
        """Who owns the sessions that are made here; known before the first of them."""
        self._by_key: dict[tuple[OwnerId, str], Session] = {}
        self._secret_changes = collections.Counter[OwnerId]()
        self._rates = CreateRates(
            per_s=settings.quotas.creates_per_s, burst=settings.quotas.create_burst, clock=time.monotonic
        )
        capacity = substrate.capacity()
        self.ceilings = ceilings.fitted(settings.ceilings, capacity)
        self._share = ceilings.share_of(settings.quotas.share, capacity)
        self.on_end: Callable[[Session], None] = lambda _session: None
        self.observer: Observer = UNOBSERVED

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, owner: OwnerId, session_id: str) -> Session:
        """The caller's own session. Raises: NotFound, also for one of somebody else's."""
        session = self._by_key.get((owner, session_id))
        if session is None or session.phase is Phase.CREATING:
            raise NotFound("session", session_id)
        return session

    def of(self, owner: OwnerId) -> list[Session]:
        return [session for (who, _), session in self._by_key.items() if who == owner]

    def transcript(self, session: Session) -> Transcript:
        """Its directory is made when there is something to write: on a full disk a command runs without."""
        # It is cut to a half when it is full, so that not every command pays for that.
        keep_bytes = self.settings.kept.transcript_per_session // 2
        return Transcript(self._directory(session) / "transcript", keep_bytes=keep_bytes)

    def directory(self, session: Session) -> Path:
        """Where the server keeps this session's transcript and background output. Raises: SandboxLost when it goes."""
        path = self.place(session)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def place(self, session: Session) -> Path:
        """The same, which may not be there yet. Raises: SandboxLost when it goes."""
        session.check_stays()
        return self._directory(session)

    def _directory(self, session: Session) -> Path:
        """Named by the sandbox, not the caller."""
        if session.box is None:
            raise NotFound("session", session.session_id)
        return self._directories / session.box.id

    @property
    def _directories(self) -> Path:
        return self.settings.data_dir / "sessions"

    async def clear_leftovers(self) -> None:
        """Remove what a crash has left of sessions that are no more: neither here nor with another gateway."""
        kept = {stored.record.sandbox for stored in self._store.load(SESSIONS)}
        for path in self._directories.glob("*"):
            if path.name not in kept:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def create(self, owner: OwnerId, spec: SessionSpec, admit: Admit) -> Session:
        """A usable session, made once what is asked for is known to be possible and then admitted.

        Raises: InvalidSpec, Denied, Conflict, Exhausted, HostUnsupported, SandboxFailed.
        """
        await self._check_possible(spec)
        spec = dataclasses.replace(spec, limits=ceilings.within(spec.limits, self.ceilings))
        spec = lists.resolved(spec, self.settings.egress)
        if spec.tenant:
            check_tenant(spec.tenant)
        labels.check(spec.labels, most=self.settings.quotas.labels_per_session)
        check_references(spec)
        spec = brokering.resolved(spec, self.settings.egress)
        self._secrets.environment(owner, spec.secret_refs)
        self.brokering.check(owner, spec)
        await admit(spec)
        return await self._owned(self._create(owner, spec, parent=None), name="create session")

    async def create_child(self, owner: OwnerId, parent_id: str, admit: Admit) -> Session:
        """A session with its own sandbox on its parent's workspace, where that is possible and then admitted.

        Raises: NotFound, Denied past depth 1, Conflict, Exhausted, HostUnsupported, SandboxFailed.
        """
        parent = self.find(owner, parent_id)
        if parent.parent is not None:
            raise Denied(f"session {parent_id} is a sub-agent and cannot have sub-agents of its own (depth 1)")
        parent.live_box()
        await self._check_possible(as_child(parent.spec), shares_workspace=True)
        spec = self._as_child(parent)
        await admit(spec)
        parent.live_box()
        # Labels may change meanwhile: nobody was asked about them.
        approved, spec = spec, self._as_child(parent)
        if dataclasses.replace(spec, labels=approved.labels) != approved:
            raise Conflict(f"session {parent_id} has changed while this waited for approval: ask again")
        return await self._owned(self._create(owner, spec, parent=parent), name="create sub-agent")

    def _as_child(self, parent: Session) -> SessionSpec:
        """What a sub-agent gets: the parent's, within the ceilings of today; the parent may be from before them."""
        spec = as_child(parent.spec)
        return dataclasses.replace(spec, limits=ceilings.clipped(spec.limits, self.ceilings))

    async def extend(self, session: Session, *, ttl_s: float | None, idle_timeout_s: float | None) -> None:
        """Move the deadlines, counted from now. Raises: InvalidSpec, SandboxLost when it is about to end."""
        session.check_stays()
        if ttl_s is not None:
            ttl_s = ceilings.bounded("ttl_s", ttl_s, self.ceilings, field="ttl_s")
        if idle_timeout_s is not None:
            idle_timeout_s = ceilings.bounded("idle_timeout_s", idle_timeout_s, self.ceilings, field="idle_timeout_s")
        now = time.time()
        if ttl_s is not None:
            session.expires_at = deadline(now, ttl_s)
        if idle_timeout_s is not None:
            session.idle_timeout_s = idle_timeout_s
        session.last_used = now
        await self._store.commit(*session.timed())

    async def respecify(self, session: Session, change: Callable[[SessionSpec], SessionSpec]) -> None:
        """Change what a session may reach: written down, then in force. Raises: what `change` raises, SandboxFailed."""
        await self._tasks.finish(self._respecify(session, change), name=f"respecify {session.session_id}")

    async def _respecify(self, session: Session, change: Callable[[SessionSpec], SessionSpec]) -> None:
        async with session.changing:
            box, spec = session.live_box(), change(session.spec)
            # Written down first: a host that was taken away must not come back with the next start.
            await self._write_spec(session, spec)
            await box.set_egress(self.claim(session).egress)
        self._events.add(session.owner, session.session_id, "session.hosts_changed", allowed_hosts=spec.allowed_hosts)

    async def relabel(self, session: Session, *, set: Mapping[str, str], remove: Sequence[str]) -> None:
        """Change its labels: written down, then seen. Raises: InvalidSpec, SandboxLost when it is about to end."""
        await self._tasks.finish(self._relabel(session, set, remove), name=f"relabel {session.session_id}")

    async def _relabel(self, session: Session, set: Mapping[str, str], remove: Sequence[str]) -> None:
        async with session.changing:
            session.check_stays()
            most, old = self.settings.quotas.labels_per_session, session.spec.labels
            new = labels.changed(old, set=set, remove=remove, most=most)
            spec = dataclasses.replace(session.spec, labels=new)
            await self._write_spec(session, spec)
        # Keys alone: values are free text, and events are kept for longer than the session.
        told = {"set": sorted(set), "removed": sorted(old.keys() - new.keys())}
        self._events.add(session.owner, session.session_id, "session.labels_changed", **told)

    async def _write_spec(self, session: Session, spec: SessionSpec) -> None:
        """What it is promised from now on, written down before it is so. Raises: StoreFailed; then it is as before."""
        try:
            await self._store.commit(*session.respecified(spec))
        except StoreFailed:
            # Its other changes write all of it, and may have taken the new one along.
            self._store.post(*session.respecified(session.spec))
            raise
        session.spec = spec

    async def renew_secrets(self, owner: OwnerId, name: str) -> None:
        """A secret has changed: from now on its brokers use what it is now. Raises: SandboxFailed."""
        # For those that are being made: what they have been given may be what it was.
        self._secret_changes[owner] += 1
        failures = []
        for session in self.of(owner):
            if session.phase is Phase.ACTIVE and any(each.secret_name == name for each in session.spec.brokered):
                try:
                    await self._renew(session)
                except SandboxFailed as error:
                    # A session that cannot be told must not keep it from the others.
                    failures.append(error)
        if failures:
            raise failures[0]

    async def _renew(self, session: Session) -> None:
        if session.box is not None:
            await self.brokering.renew(session.owner, session.spec, session.box)

    def claim(self, session: Session) -> Claim:
        """What the session's sandbox is given."""
        limits = session.spec.limits
        return Claim(
            cpus=limits.cpus,
            processes=limits.processes,
            workspace=session.workspace,
            egress=lists.policy(session.spec, self.settings.egress),
        )

    async def destroy(self, session: Session, *, why: str = "asked") -> None:
        """Remove the session, its children, its sandbox and everything that was only its own."""
        await asyncio.shield(self._begin_end(session, why))
        if session.phase is not Phase.GONE:
            if session.end_failure is not None:
                raise session.end_failure
            raise SandboxFailed(f"remove session {session.session_id}", "see the server's log; it will be tried again")

    def reap(self, now: float) -> None:
        """Begin to end every session whose time is over, and again what could not be removed before."""
        for session in self:
            # One that is still being written down has no sandbox yet: its creator gets it first, however short its time.
            has_begun = session.phase is Phase.FAILED or (session.phase is Phase.ACTIVE and session.box is not None)
            if has_begun and session.is_over(now):
                self._begin_end(session, "expired" if now >= session.expires_at else "idle")
            elif session.phase is Phase.TERMINATING and 0 < session.end_again_at <= now:
                self._begin_end(session, "tried again")

    def _begin_end(self, session: Session, why: str) -> asyncio.Task[None]:
        if session.ending is None:
            # At once: whatever is asked of it from now on would be lost with it.
            session.ending = self._tasks.start(self._end(session, why), name=f"end {session.session_id}")
            session.ending.add_done_callback(lambda _task: _ended(session))
        return session.ending

    async def remember_use(self) -> None:
        """Write down when sessions were last used, so that idleness is not forgotten by a restart."""
        used = [each for each in self if each.phase is Phase.ACTIVE and each.times() != each.times_written]
        for first in range(0, len(used), _AT_ONCE):
            some = used[first : first + _AT_ONCE]
            times = [each.times() for each in some]
            await self._store.commit(*(change for each in some for change in each.timed()))
            for each, written in zip(some, times, strict=True):
                each.times_written = written

    def adopt(self, session: Session) -> None:
        """Take back a session that survived a restart."""
        self._by_key[session.owner, session.session_id] = session
        if session.parent is not None:
            session.parent.children.append(session)
        if session.box is not None:
            self._hold(session, session.box)

    def _hold(self, session: Session, box: Box) -> None:
        session.box = box
        box.died = lambda _box, death: self._lost(session, death)
        self._egress.hold(box.id, session.owner, session.session_id)
        self._watch.follow(box)

    async def _owned(self, work: Coroutine[Any, Any, Session], *, name: str) -> Session:
        """Wait for work that goes on if the waiter leaves; a session that nobody waited for is ended again."""
        task = self._tasks.start(outcome_of(work), name=name)
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._end_unclaimed)
            raise
        if isinstance(outcome, Session):
            return outcome
        raise outcome or SandboxFailed(name, "see the server's log")

    def _end_unclaimed(self, task: asyncio.Task[Session | K8eError | None]) -> None:
        outcome = None if task.cancelled() else task.result()
        if isinstance(outcome, Session):
            self._tasks.start(self.destroy(outcome, why="its creator went away"), name="end unclaimed session")

    async def _check_possible(self, spec: SessionSpec, *, shares_workspace: bool = False) -> None:
        """Raises: HostUnsupported, with the substrate's reason."""
        can = await self._substrate.capabilities()
        availability = can.runtimes.get(spec.runtime)
        if availability is None or not availability.available:
            reason = availability.detail if availability else "unknown runtime"
            raise HostUnsupported(f"runtime {spec.runtime} is not available on this host: {reason}")
        for is_asked, what, asked in (
            (spec.image != HOST_IMAGE, "an image other than the host's", can.images),
            (bool(spec.tenant), "a workspace that outlives its session", can.workspaces),
            (shares_workspace, "a workspace that two sessions share", can.workspaces),
            (bool(spec.brokered), "a brokered secret", can.brokering),
        ):
            if is_asked and not asked.available:
                raise HostUnsupported(f"{what} cannot be had here: {asked.detail}")

    async def _create(self, owner: OwnerId, spec: SessionSpec, *, parent: Session | None) -> Session:
        session, began = self._reserve(owner, spec, parent), time.perf_counter()
        secrets_seen = self._secret_changes[owner]
        try:
            template = await self._substrate.prepare(spec.template(), owner, lambda _progress: None)
            session.spec = dataclasses.replace(spec, image=template.image)
            if parent is not None:
                session.workspace = parent.workspace or await self._substrate.share_workspace(parent.live_box().id)
            elif spec.tenant:
                session.workspace = await self._workspaces.find_or_create(
                    owner, spec.tenant, disk_bytes=spec.limits.disk_bytes, gates=spec.gates
                )
            await self._claim(session)
        except BaseException:
            self._forget(session)
            raise
        if spec.brokered and self._secret_changes[owner] != secrets_seen:
            await self._renew_or_end(session)
        self.observer.claimed(spec.runtime, warm=session.warm, took_s=time.perf_counter() - began)
        self._events.add(
            owner, session.session_id, "session.created", runtime=spec.runtime, warm=session.warm, tenant=spec.tenant
        )
        return session

    async def _renew_or_end(self, session: Session) -> None:
        """Its secrets as they are now, or no session: nobody would take back what it was given too early."""
        try:
            await self._renew(session)
        except K8eError:
            await self.destroy(session, why="its secrets could not be renewed")
            raise

    def _reserve(self, owner: OwnerId, spec: SessionSpec, parent: Session | None) -> Session:
        """Take the name before anything is built, so that two callers cannot both have it."""
        if parent is not None:
            parent.live_box()
        self._rates.take(owner)
        if len(held := self.of(owner)) >= self.settings.quotas.sessions:
            raise _too_many(held, time.time())
        self._check_share(owner, spec, held)
        ceilings.check_memory(self._substrate.capacity(), self.settings.reserve_memory)
        name = check_client_id(spec.session_id) if spec.session_id else new_id("sess")
        if (owner, name) in self._by_key:
            raise Conflict(f"session {name} already exists")
        now = time.time()
        session = Session(
            owner=owner,
            session_id=SessionId(name),
            spec=spec,
            phase=Phase.CREATING,
            created_at=now,
            expires_at=deadline(now, spec.limits.ttl_s),
            idle_timeout_s=spec.limits.idle_timeout_s,
            last_used=now,
            parent=parent,
        )
        self._by_key[owner, name] = session
        if parent is not None:
            parent.children.append(session)
        return session

    def _check_share(self, owner: OwnerId, spec: SessionSpec, held: Sequence[Session]) -> None:
        """Raises: Exhausted when what the owner holds leaves too little for one more like this."""
        workspaces = {each.tenant: each.disk_bytes for each in self._workspaces.list(owner)}
        if spec.tenant:
            workspaces.setdefault(spec.tenant, spec.limits.disk_bytes)
        limits = [each.spec.limits for each in held]
        ceilings.check_share(limits, spec.limits, self._share, workspaces_bytes=sum(workspaces.values()))

    async def _claim(self, session: Session) -> None:
        for attempt in range(1, _CLAIM_TRIES + 1):
            claimed = await self._substrate.claim(session.spec.template(), self.claim(session))
            session.warm, session.epoch = claimed.warm, claimed.epoch
            box = self.box(claimed.sandbox)
            try:
                await self._take(session, box)
            except BaseException as error:
                # Once claimed, a sandbox is nobody else's, whatever it was that failed.
                gone = self._tasks.start(self._discard(session, box), name=f"discard {box.id}")
                if isinstance(error, K8eError):
                    # The next to have this name, our next try too, writes it down again: this must be gone by then.
                    await asyncio.wait({gone})
                if not isinstance(error, SandboxFailed) or attempt == _CLAIM_TRIES or not _is_wanted(session):
                    raise
            else:
                return

    def box(self, sandbox: SandboxId) -> Box:
        """The engine's end of a sandbox that is there."""
        return Box(sandbox, self._substrate, self._tasks)

    async def _discard(self, session: Session, box: Box) -> None:
        """Remove a sandbox that the session did not get, and what may have been written down of the two."""
        await box.destroy()
        await self._store.commit()  # after whatever is still on its way to the disk
        key = (session.owner, session.session_id)
        kept = self._store.get(SESSIONS, *key)
        if kept is not None and kept.record.sandbox == box.id:
            with contextlib.suppress(Conflict):  # the name has a new bearer, or was ended by somebody who removes it
                await self._store.commit(SESSIONS.delete(*key, if_version=kept.version))

    async def _take(self, session: Session, box: Box) -> None:
        await box.connect()
        if session.spec.brokered:
            await self.brokering.give(session.owner, session.spec, box)
        if session.parent is not None:
            session.parent.live_box()
        session.begin(time.time())
        session.enter(Phase.ACTIVE)
        # A crash before this line leaves a sandbox that no session has, and the next start removes it.
        await self._store.commit(session.inserted(box.id, self.gateway))
        if session.phase is not Phase.ACTIVE:
            # Whoever ended it while this was written down saw no sandbox to remove.
            raise session.lost()
        self._hold(session, box)

    async def _end(self, session: Session, why: str) -> None:
        session.end_failure = None
        try:
            await self._end_now(session, why)
        except DiskFull as error:
            # Of all that can go wrong the one that whoever asked can mend.
            session.end_failure = error
            raise

    async def _end_now(self, session: Session, why: str) -> None:
        while session.children:
            await self.destroy(session.children[0], why="parent ended")
        if session.phase is not Phase.TERMINATING:
            await self._write_ending(*session.enter(Phase.TERMINATING, detail=why))
        self.on_end(session)
        if session.box is not None:
            await session.box.destroy()
            self._watch.leave(session.box)
            self._egress.drop(session.box.id)
            # After whatever is still being written there: that would bring it back.
            await self.files.run(functools.partial(shutil.rmtree, self._directory(session), ignore_errors=True))
        # On a full disk the room that the removal has made may be there only a moment later.
        await self._store.commit_retrying(*session.deleted())
        session.enter(Phase.GONE)
        self._forget(session)
        self._events.add(session.owner, session.session_id, "session.ended", why=why)
        self._events.forget(session.owner, session.session_id)

    async def _write_ending(self, *changes: Change) -> None:
        """On a full disk it goes without: what is removed makes the room in which its end is written down.

        A crash in between leaves a session whose sandbox is gone, and the next start tells its owner so.
        """
        try:
            await self._store.commit(*changes)
        except DiskFull as error:
            _log.warning("a session ends before that is written down", extra={"reason": str(error)})

    def _forget(self, session: Session) -> None:
        """Its name is free from now on; it may have been before, and have a new bearer."""
        key = (session.owner, session.session_id)
        if self._by_key.get(key) is session:
            del self._by_key[key]
        if session.parent is not None and session in session.parent.children:
            session.parent.children.remove(session)

    def _lost(self, session: Session, death: Death) -> None:
        if session.phase is not Phase.ACTIVE:
            return
        detail = death.detail or "its sandbox died"
        _log.info("a session lost its sandbox", extra={"session": session.session_id, "detail": detail})
        self._store.post(*session.enter(Phase.FAILED, detail=detail))
        self._events.add(session.owner, session.session_id, "session.lost", detail=detail, oom=death.oom)
        if session.box is not None:
            self._tasks.start(session.box.destroy(), name=f"clear {session.box.id}")

    def _met_memory_limit(self, box: Box, detail: str) -> None:
        for session in self:
            if session.box is box:
                self._events.add(session.owner, session.session_id, "session.out_of_memory", detail=detail)


def as_child(parent: SessionSpec) -> SessionSpec:
    """What a sub-agent of such a session is asked to be."""
    return dataclasses.replace(parent, session_id="", tenant="")


def _too_many(held: Sequence[Session], now: float) -> Exhausted:
    """The refusal of one more session, with the time when one of these ends by itself."""
    wait_s = max(min((min(each.expires_at, each.idle_at()) for each in held), default=NEVER) - now, 0.0)
    if wait_s == NEVER:
        return Exhausted(f"you already have {len(held)} sessions: destroy one first")
    return Exhausted(
        f"you already have {len(held)} sessions: destroy one first, or retry in {wait_s:.0f} s", retry_after_s=wait_s
    )


def _ended(session: Session) -> None:
    """However it went: a session that could not be ended is what it was before."""
    session.ending = None
    session.end_again_at = time.time() + _AGAIN_S


def _is_wanted(session: Session) -> bool:
    """Whether another sandbox would help it: not if it, or its parent, was ended while it was made."""
    return not session.is_going and (session.parent is None or session.parent.is_live)
