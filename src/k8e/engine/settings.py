"""What an operator may set about the engine, with the reason for each default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k8e.engine.ceilings import Ceilings, Share
from k8e.model import GIB, MIB, Gates, HostRule, Limits, NetRule, Template

__all__ = ["EgressSettings", "EngineSettings", "KeptLimits", "Quotas"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What one owner, or one of its sessions, may have at a time."""

    sessions: int = 500
    share: Share = field(default_factory=Share)
    workspaces: int = 500
    """That outlive their sessions."""
    creates_per_s: float = 50.0
    create_burst: int = 500
    runs_per_session: int = 32
    terminals_per_session: int = 32
    execs_per_session: int = 256
    ports_per_session: int = 64
    """Connections to servers inside; the agent carries at most 256."""
    labels_per_session: int = 64
    """Each is shown wherever the session is: these are at most 40 KB of it."""
    approvals_per_session: int = 64
    """Questions that wait for an answer; a person who has more before them reads none."""
    approvals: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLimits:
    """What sessions may leave on the host's disk, besides their sandboxes; the oldest goes first."""

    runs_per_session: int = 256
    """Background runs that have ended."""
    output_per_session: int = 256 * MIB
    """Of background runs, running or ended."""
    output_per_owner: int = 4 * GIB
    transcript_per_session: int = 8 * MIB
    events_per_session: int = 4 * MIB
    events_per_owner: int = 64 * MIB
    events_age_s: float = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    rules: tuple[HostRule | NetRule, ...] = (
        HostRule(name="github.com"),
        HostRule(name="raw.githubusercontent.com"),
    )
    """The list of sessions that bring none: code hosts here, package registries as the entry point found them."""
    allow_open: bool = False
    """Whether a caller may ask for the whole internet."""
    env: Mapping[str, str] = field(default_factory=dict)
    """For every command: where packages come from and whom to trust, as the operator's own tools have it."""
    ca_bundle: bytes | None = None
    """What `env` points to, for whoever must put more certificates beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    data_dir: Path
    default: Template = field(default_factory=Template)
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    ceilings: Ceilings = field(default_factory=Ceilings)
    reserve_memory: int | None = None
    """What stays free on the host: below it no session is made. None fits the host."""
    kept: KeptLimits = field(default_factory=KeptLimits)
    egress: EgressSettings = field(default_factory=EgressSettings)
    reap_every_s: float = 1.0
    """How often expired and idle sessions are looked for; the most that a session can outstay its time."""
    gates: Gates = field(default_factory=Gates)
    """Of every session, besides its own."""
    approval_s: float = 300.0
    """How long a question waits for its answer."""
