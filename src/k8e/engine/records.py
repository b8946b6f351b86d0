"""What the engine's store keeps of sessions, their background runs and their terminals.

A record is written whole, so its fields are the format: see `Kind`. Times are seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8e.engine.store import Kind
from k8e.lifecycle import Phase
from k8e.model import Denial, Outcome, OwnerId, RunId, SandboxId, SessionId, SessionSpec, TerminalId, WorkspaceId

__all__ = ["RUNS", "SESSIONS", "TERMINALS", "RunRecord", "SessionRecord", "TerminalRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """What the next server must know to take a session back."""

    owner: OwnerId
    session_id: SessionId
    sandbox: SandboxId
    phase: Phase
    spec: SessionSpec
    parent: SessionId | None = None
    workspace: WorkspaceId | None = None
    warm: bool = False
    detail: str = ""
    created_at: float
    expires_at: float | None
    """None never."""
    idle_timeout_s: float
    """Zero or less is none."""
    last_used: float
    gateway: str
    """Who owns it."""
    epoch: int
    """At which that gateway owns its sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A background run: its output is in files, its end is here."""

    run_id: RunId
    owner: OwnerId
    session_id: SessionId
    started_at: float
    command: str
    """In short."""
    truncated: bool = False
    outcome: Outcome | None = None
    denied: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalRecord:
    """A terminal that may still be there."""

    terminal_id: TerminalId
    owner: OwnerId
    session_id: SessionId
    pid: int


# Runs and terminals belong to a session and go with it. One that is damaged is missed by its session alone.
SESSIONS = Kind("session", SessionRecord, lambda record: (record.owner, record.session_id))
RUNS = Kind(
    "run", RunRecord, lambda record: (record.owner, record.session_id, record.run_id), may_miss=lambda _fields: True
)
TERMINALS = Kind(
    "terminal",
    TerminalRecord,
    lambda record: (record.owner, record.session_id, record.terminal_id),
    may_miss=lambda _fields: True,
)
