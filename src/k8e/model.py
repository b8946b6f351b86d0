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
    "PAGE_BYTES",
    "ApprovalId",
    "ApprovalPlace",
    "ApprovalStatus",
    "Argv",
    "Availability",
    "Brokered",
    "Capacity",
    "Claim",
    "Code",
    "Command",
    "Death",
    "Decision",
    "Denial",
    "EgressMode",
    "EgressPolicy",
    "ExecResult",
    "FileEntry",
    "FileKind",
    "Gates",
    "Grant",
    "HostRule",
    "ImageProgress",
    "Language",
    "Limits",
    "NetRule",
    "Outcome",
    "OwnerId",
    "ProcessInfo",
    "Reason",
    "RunId",
    "Runtime",
    "SandboxId",
    "SecretRef",
    "SessionId",
    "SessionSpec",
    "Shell",
    "Status",
    "Template",
    "TerminalId",
    "TerminalSize",
    "Usage",
    "Verdict",
    "WorkspaceId",
    "approval_place",
]

MIB = 1024 * 1024
GIB = 1024 * MIB
PAGE_BYTES = 4 * MIB
"""Of a list that comes in pages."""

OwnerId = NewType("OwnerId", str)
SessionId = NewType("SessionId", str)
SandboxId = NewType("SandboxId", str)
RunId = NewType("RunId", str)
TerminalId = NewType("TerminalId", str)
WorkspaceId = NewType("WorkspaceId", str)
ApprovalId = NewType("ApprovalId", str)
HOST_IMAGE = "host"
"""The host's own programs, read-only."""


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
    memory_bytes: int = GIB
    processes: int = 256
    disk_bytes: int = 5 * GIB
    output_bytes: int = MIB
    """Captured per stream by unary calls; more is dropped and said so."""
    run_output_bytes: int = 64 * MIB
    """Kept per stream of a background run; more is dropped and said so."""
    command_timeout_s: float = 30.0
    ttl_s: float = 24 * 3600.0
    idle_timeout_s: float = 3600.0
    connections: int = 256
    """To the network at once."""
    network_bytes_per_s: int = 0
    """To and from the network together; 0 is no limit."""


class EgressMode(StrEnum):
    """How far a session's network reaches."""

    NONE = "none"
    LIST = "list"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """A name, canonical (lower case, A-labels, no dot at the end), that may be reached, or may not."""

    name: str
    subdomains: bool = False
    """Written `*.name`: every name below it, but not itself."""
    port: int | None = None
    """None means the web's two: 80 and 443."""
    deny: bool = False
    may_be_private: bool = False
    """The operator's own mirror: a private address is no attack there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetRule:
    """Addresses that may be reached as such, on one port or on all, or may not."""

    network: str
    port: int | None = None
    deny: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """What one session may reach. Nothing here knows how it is enforced."""

    mode: EgressMode = EgressMode.NONE
    rules: tuple[HostRule | NetRule, ...] = ()
    connections: int = 256
    bytes_per_s: int = 0


class Verdict(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    CLOSED = "closed"
    """An allowed connection ended; now its bytes are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing that a sandbox's network asked for, and the answer."""

    at: float
    sandbox: SandboxId
    verdict: Verdict
    protocol: str
    """dns, tcp, tls or http: what was looked at."""
    name: str = ""
    address: str = ""
    port: int = 0
    rule: str = ""
    """The entry that decided, as its author wrote it."""
    reason: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    count: int = 1
    """How many equal decisions this one stands for."""


@dataclass(frozen=True, slots=True)
class Denial:
    """What a command wanted to reach and could not, for whoever may allow it."""

    host: str
    port: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """A secret's value as an environment variable of commands."""

    secret_name: str
    key: str
    env_var: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokered:
    """A secret that stays outside: commands get a placeholder, which is swapped on its way to one host."""

    secret_name: str
    key: str
    env_var: str
    host: str
    header: str = "authorization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A brokered secret as the proxy needs it."""

    host: str
    header: str
    placeholder: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The pool's key: what cannot be changed once a sandbox runs."""

    runtime: Runtime = Runtime.GVISOR
    image: str = HOST_IMAGE
    memory_bytes: int = GIB
    disk_bytes: int = 5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProgress:
    """How far an image is on its way: `waiting`, `resolving`, `downloading`, `unpacking`, `preparing`, `ready`."""

    phase: str
    done: int = 0
    total: int = 0
    """Bytes; 0 where nobody knows."""
    image: str = ""
    """The image's name with its digest, once it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a sandbox is given when a session takes it: everything that can change live."""

    cpus: float
    processes: int
    workspace: WorkspaceId | None = None
    """A workspace that outlives the sandbox; None keeps the sandbox's own."""
    egress: EgressPolicy = field(default_factory=EgressPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Where a person is asked before a call goes on."""

    egress: bool = False
    """Hosts that are added to the session's list."""
    write_paths: tuple[str, ...] = ()
    """Changes through the file API at or below these, and whatever takes them away."""
    workspace: bool = False
    """Deleting the workspace of the session's tenant."""
    secrets: bool = False
    """Secrets whose values the sandbox would see."""
    commands: tuple[str, ...] = ()
    """Patterns (RE2) that are searched in the text of commands. Advisory: code can be written so that none finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a caller asks for."""

    session_id: str = ""
    tenant: str = ""
    runtime: Runtime = Runtime.GVISOR
    image: str = HOST_IMAGE
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """By which its owner finds it again; they grant nothing."""
    allowed_hosts: tuple[str, ...] = ()
    """Empty means the server's default list."""
    network: EgressMode = EgressMode.LIST
    secret_refs: tuple[SecretRef, ...] = ()
    brokered: tuple[Brokered, ...] = ()
    user: str = ""
    gates: Gates = field(default_factory=Gates)

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
    egress_denied: tuple[Denial, ...] = ()


class ApprovalStatus(StrEnum):
    """Where a question to a person stands; only the first can change."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"


ApprovalPlace = tuple[bool, float, str]


def approval_place(*, is_pending: bool, asked_at: float, approval_id: str) -> ApprovalPlace:
    """Where a question stands in a list: those that wait first, oldest first; then the others, newest first."""
    return not is_pending, asked_at if is_pending else -asked_at, approval_id


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
    args: str = ""
    """All its arguments, joined by spaces; nothing of a zombie. Of very long ones, the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a sandbox uses."""

    cpu_s: float
    """So far; two readings make a rate."""
    memory_bytes: int
    processes: int
    """As the host counts them; a runtime with a kernel of its own has others than its programs see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the place where sandboxes live has in all, and what is left of it now."""

    cpus: float
    memory_bytes: int
    processes: int
    """That one sandbox may have without leaving too few for the rest."""
    disk_bytes: int
    free_memory_bytes: int
    free_disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether something works here: probed, never guessed."""

    available: bool
    detail: str = ""
    """More about it, such as a version, when available; else the reason and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Why a sandbox is gone."""

    oom: bool = False
    detail: str = ""
