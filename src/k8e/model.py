"""The values that travel between rooms: frozen, complete, and free of I/O.

Text that Linux allows to be arbitrary bytes (arguments, paths, environment) is `str` decoded with
`surrogateescape`, so nothing is ever lost or refused for not being UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

__all__ = [
    "GIB",
    "MIB",
    "Argv",
    "Availability",
    "Claim",
    "Code",
    "Command",
    "Death",
    "ExecResult",
    "FileEntry",
    "FileKind",
    "Language",
    "Limits",
    "Outcome",
    "OwnerId",
    "ProcessInfo",
    "Reason",
    "RunId",
    "Runtime",
    "SandboxId",
    "SessionId",
    "SessionSpec",
    "Shell",
    "Status",
    "Template",
    "TerminalId",
    "TerminalSize",
    "WorkspaceId",
]

MIB = 1024 * 1024
GIB = 1024 * MIB

OwnerId = NewType("OwnerId", str)
SessionId = NewType("SessionId", str)
SandboxId = NewType("SandboxId", str)
RunId = NewType("RunId", str)
TerminalId = NewType("TerminalId", str)
WorkspaceId = NewType("WorkspaceId", str)


class Runtime(StrEnum):
    """How a sandbox is isolated."""

    GVISOR = "gvisor"
    CONTAINER = "container"
    KATA = "kata"
    FIRECRACKER = "firecracker"


class Language(StrEnum):
    """What `run` understands; a language is a way to start code, never a promise that it is installed."""

    PYTHON = "python"
    BASH = "bash"
    NODE = "node"
    TS = "ts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use. The kernel enforces all of them."""

    cpus: float = 1.0
    memory_bytes: int = 512 * MIB
    processes: int = 256
    disk_bytes: int = GIB
    output_bytes: int = MIB
    """Captured per stream by unary calls; more is dropped and said so."""
    run_output_bytes: int = 64 * MIB
    """Kept per stream of a background run; more is dropped and said so."""
    command_timeout_s: float = 30.0
    ttl_s: float = 24 * 3600.0
    idle_timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The pool's key: what cannot be changed once a sandbox runs."""

    runtime: Runtime = Runtime.GVISOR
    image: str = "host"
    memory_bytes: int = 512 * MIB
    disk_bytes: int = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a sandbox is given when a session takes it: everything that can change live."""

    cpus: float
    processes: int
    workspace: WorkspaceId | None = None
    """A workspace that outlives the sandbox; None keeps the sandbox's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a caller asks for."""

    session_id: str = ""
    tenant: str = ""
    runtime: Runtime = Runtime.GVISOR
    image: str = "host"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    allowed_hosts: tuple[str, ...] = ()
    user: str = ""

    def template(self) -> Template:
        """The pool that can serve this session."""
        return Template(
            runtime=self.runtime,
            image=self.image,
            memory_bytes=self.limits.memory_bytes,
            disk_bytes=self.limits.disk_bytes,
        )


@dataclass(frozen=True, slots=True)
class Argv:
    """Executed as given, found on PATH."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shell:
    """Given to `/bin/sh -c`."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A program's text, delivered byte for byte to the language's own interpreter."""

    language: Language
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One thing to execute inside a session."""

    what: Argv | Shell | Code
    cwd: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """Empty is root inside; else a name or `uid[:gid]`."""
    timeout_s: float | None = None
    """None takes the session's limit; 0 or less means no limit."""
    stdin: bool = False
    """Whether input will be sent; without it the command reads end-of-file."""
    terminal: TerminalSize | None = None


class Status(StrEnum):
    """The words clients already know."""

    STARTED = "started"
    RUNNING = "running"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a command ended, where `Status` alone does not say."""

    NONE = ""
    KILLED = "killed"
    OOM_KILLED = "oom_killed"
    SANDBOX_LOST = "sandbox_lost"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended. `exit_code` is 128+n after signal n, 124 after a time-out."""

    status: Status
    exit_code: int
    signal: int = 0
    reason: Reason = Reason.NONE
    detail: str = ""
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    stdout: bytes
    stderr: bytes
    outcome: Outcome
    truncated: bool = False


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    path: str
    kind: FileKind
    size: int
    modified_s: float
    mode: int = 0
    target: str = ""
    """Where a symbolic link points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    pid: int
    comm: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a runtime works here: probed, never guessed."""

    available: bool
    detail: str
    """The version when available, else the reason and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Why a sandbox is gone."""

    oom: bool = False
    detail: str = ""
