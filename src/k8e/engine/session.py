"""One session's record: what it was promised, where it is in its life, and when it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from k8e.engine.boxes import Box
from k8e.engine.records import RUNS, SESSIONS, TERMINALS, SessionRecord
from k8e.engine.store import Change, Put
from k8e.errors import DiskFull, SandboxLost
from k8e.lifecycle import Phase, advance
from k8e.model import (
    Brokered,
    EgressMode,
    Gates,
    Limits,
    OwnerId,
    Runtime,
    SandboxId,
    SessionId,
    SessionSpec,
    WorkspaceId,
)

__all__ = ["NEVER", "Session", "SessionView", "Use", "deadline"]

NEVER = float("inf")


def deadline(start: float, seconds: float) -> float:
    """When a time limit ends; zero or less means that there is none."""
    return start + seconds if seconds > 0 else NEVER


def _at(time: float) -> float | None:
    """A deadline as it is written down."""
    return None if time == NEVER else time


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """What a door may show of a session: environment keys, never values."""

    owner: OwnerId
    session_id: SessionId
    sandbox: SandboxId | None
    """Its name on the host: in cgroups, mounts and logs."""
    phase: Phase
    runtime: Runtime
    image: str
    tenant: str
    labels: Mapping[str, str]
    created_at: float
    expires_at: float
    idle_at: float
    env_keys: tuple[str, ...]
    secret_env_vars: tuple[str, ...]
    brokered: tuple[Brokered, ...]
    background_runs: int
    network: EgressMode
    allowed_hosts: tuple[str, ...]
    parent: SessionId | None
    children: tuple[SessionId, ...]
    limits: Limits
    warm: bool
    detail: str
    gates: Gates


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """Mutable only through the table that owns it."""

    owner: OwnerId
    session_id: SessionId
    spec: SessionSpec
    phase: Phase
    created_at: float
    expires_at: float
    idle_timeout_s: float
    last_used: float
    box: Box | None = None
    epoch: int = 0
    """At which this gateway owns its sandbox."""
    warm: bool = False
    workspace: WorkspaceId | None = None
    parent: Session | None = None
    children: list[Session] = field(default_factory=list)
    busy: int = 0
    runs: int = 0
    terminals: int = 0
    ports: int = 0
    """Connections to servers inside; each of them is one of `busy`."""
    detail: str = ""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever changes what it was promised."""
    end_again_at: float = 0.0
    """When to try its removal again; 0 as long as none has failed."""
    end_failure: DiskFull | None = None
    """Why it could not be ended, where whoever asked for it can help."""
    record: SessionRecord | None = None
    """As the store was told last, whether it is on disk yet or not."""
    told: Put | None = None
    """The change that told it so, if that was this process."""
    times_written: tuple[float, float, float] | None = None
    """Its times as they are on disk for certain."""
    ending: asyncio.Task[None] | None = None
    """Its removal while that is under way; its phase says so only when its children are gone."""

    @property
    def is_live(self) -> bool:
        return self.phase is Phase.ACTIVE and self.box is not None and self.ending is None

    def live_box(self) -> Box:
        """The sandbox to work in. Raises: SandboxLost with the reason."""
        if self.box is None or not self.is_live:
            raise self.lost()
        return self.box

    @property
    def is_going(self) -> bool:
        return self.ending is not None or self.phase in (Phase.TERMINATING, Phase.GONE)

    def check_stays(self) -> None:
        """Raises: SandboxLost once it is bound to go."""
        if self.is_going:
            raise self.lost()

    def lost(self) -> SandboxLost:
        """The error for whoever still wants something of it."""
        phase = Phase.TERMINATING if self.ending is not None else self.phase
        return SandboxLost(f"session {self.session_id} is {phase}", self.detail)

    def begin(self, now: float) -> None:
        """Its time runs from when it has its sandbox: a wait for one uses up nothing of it."""
        self.expires_at = deadline(now, self.spec.limits.ttl_s)
        self.last_used = now

    def idle_at(self) -> float:
        """When it will have been idle for too long; never while something runs in it."""
        return NEVER if self.busy else deadline(self.last_used, self.idle_timeout_s)

    def times(self) -> tuple[float, float, float]:
        """What moves when it is used or extended."""
        return self.expires_at, self.idle_timeout_s, self.last_used

    def is_over(self, now: float) -> bool:
        return now >= self.expires_at or now >= self.idle_at()

    def enter(self, phase: Phase, *, detail: str = "") -> tuple[Change, ...]:
        """Advance, and the change that makes it durable."""
        self.phase = advance(self.phase, phase)
        self.detail = detail or self.detail
        return self._changed(phase=self.phase, detail=self.detail)

    def inserted(self, sandbox: SandboxId, gateway: str) -> Change:
        """The change that writes a new session down, with the gateway that owns it; Conflict if the name is taken."""
        self.record = SessionRecord(
            owner=self.owner,
            session_id=self.session_id,
            sandbox=sandbox,
            phase=self.phase,
            spec=self.spec,
            parent=self.parent.session_id if self.parent else None,
            workspace=self.workspace,
            warm=self.warm,
            detail=self.detail,
            created_at=self.created_at,
            expires_at=_at(self.expires_at),
            idle_timeout_s=self.idle_timeout_s,
            last_used=self.last_used,
            gateway=gateway,
            epoch=self.epoch,
        )
        self.told = SESSIONS.put(self.record, if_version=0)
        return self.told

    def respecified(self, spec: SessionSpec) -> tuple[Change, ...]:
        """The change that remembers what it is promised from now on."""
        return self._changed(spec=spec)

    def deleted(self) -> tuple[Change, ...]:
        """The changes that forget a session and what hangs on it."""
        key = (self.owner, self.session_id)
        return RUNS.delete_under(*key), TERMINALS.delete_under(*key), SESSIONS.delete(*key)

    def timed(self) -> tuple[Change, ...]:
        """The change that remembers its deadlines."""
        return self._changed(
            expires_at=_at(self.expires_at), idle_timeout_s=self.idle_timeout_s, last_used=self.last_used
        )

    def _changed(self, **fields: Any) -> tuple[Change, ...]:
        """Nothing before it is written down for the first time, and nothing after it is deleted."""
        if self.record is None:
            return ()
        # From what was handed in last, not from what is in force: a change that still waits for the disk must not be
        # undone by the next one.
        self.record = dataclasses.replace(self.record, **fields)
        self.told = SESSIONS.replace(self.record, former=self.told)
        return (self.told,)

    def view(self) -> SessionView:
        idle_at = self.idle_at()
        return SessionView(
            owner=self.owner,
            session_id=self.session_id,
            sandbox=self.box.id if self.box else None,
            phase=self.phase,
            runtime=self.spec.runtime,
            image=self.spec.image,
            tenant=self.spec.tenant,
            labels=self.spec.labels,
            created_at=self.created_at,
            expires_at=0.0 if self.expires_at == NEVER else self.expires_at,
            idle_at=0.0 if idle_at == NEVER else idle_at,
            env_keys=tuple(sorted(self.spec.env)),
            secret_env_vars=tuple(sorted(ref.env_var for ref in self.spec.secret_refs)),
            brokered=self.spec.brokered,
            background_runs=self.runs,
            network=self.spec.network,
            allowed_hosts=self.spec.allowed_hosts,
            parent=self.parent.session_id if self.parent else None,
            children=tuple(child.session_id for child in self.children),
            limits=self.spec.limits,
            warm=self.warm,
            detail=self.detail
            or (f"out of touch: {self.box.out_of_touch}" if self.box and self.box.out_of_touch else ""),
            gates=self.spec.gates,
        )


class Use:
    """A session is busy, and so not idle, from now until this is called; called twice it counts once."""

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        session.busy += 1
        session.last_used = time.time()

    def __call__(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.busy -= 1
            session.last_used = time.time()
