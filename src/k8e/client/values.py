"""What the SDK gives back: plain frozen values, with the exact bytes beside every text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "BrokeredSecret",
    "Chunk",
    "EgressDecision",
    "EgressDenial",
    "ExecInfo",
    "ExecResult",
    "Exit",
    "FileChange",
    "FileInfo",
    "Gates",
    "ImageProgress",
    "Limits",
    "ProcessInfo",
    "RunInfo",
    "RuntimeInfo",
    "SecretInfo",
    "SecretRef",
    "ServerInfo",
    "SessionInfo",
    "Transferred",
    "Usage",
    "WorkspaceInfo",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDenial:
    """A host that could not be reached, for whoever may allow it; port 0 where it was not even looked up."""

    host: str
    port: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """How far an image is: `waiting`, `resolving`, `downloading`, `unpacking`, `preparing`, `ready`."""

    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressDecision:
    """One thing that a session's network asked for, and the answer."""

    time: float
    session_id: str
    verdict: str
    """allowed, denied, or closed: an allowed connection ended, and now its bytes are known."""
    protocol: str
    """dns, tcp, tls or http: what was looked at."""
    name: str = ""
    address: str = ""
    port: int = 0
    rule: str = ""
    """The entry of the list that decided."""
    reason: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0
    count: int = 1
    """How many equal decisions this one stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command went. A non-zero `exit_code` is a result, not an error."""

    stdout: str
    """Text; bytes that are not UTF-8 are replaced. `stdout_bytes` has them exactly."""
    stderr: str
    exit_code: int
    """128+n after signal n, 124 after a time-out."""
    session_id: str = ""
    status: str = "completed"
    """completed, failed or timed_out."""
    duration_ms: int = 0
    truncated: bool = False
    """Whether output beyond the session's limit was dropped."""
    language: str = ""
    reason: str = ""
    """Why it ended where `status` does not say: killed, oom_killed, sandbox_lost, not_started."""
    signal: int = 0
    detail: str = ""
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)
    session_recreated: bool = False
    """Whether the client's own session had expired and a new, empty one was made for this call."""
    egress_denied: tuple[EgressDenial, ...] = ()
    """What its session wanted to reach meanwhile and could not."""

    @property
    def recreated(self) -> bool:
        return self.session_recreated


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output: `stream` is `stdout` or `stderr`, `offset` counts from the stream's beginning."""

    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of a command's stream."""

    exit_code: int
    status: str
    reason: str = ""
    signal: int = 0
    detail: str = ""
    duration_ms: int = 0
    truncated: bool = False
    egress_denied: tuple[EgressDenial, ...] = ()
    session_recreated: bool = False
    """Whether the client's own session had expired and a new, empty one was made for this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A background run, with its output so far."""

    run_id: str
    session_id: str
    status: str
    exit_code: int
    stdout: str
    stderr: str
    duration_ms: int
    truncated: bool
    reason: str = ""
    signal: int = 0
    detail: str = ""
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)
    egress_denied: tuple[EgressDenial, ...] = ()
    started_at: float = 0.0
    command: str = ""
    """The beginning of what it runs, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a session may use; None keeps the server's default."""

    cpus: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    output_bytes: int | None = None
    run_output_bytes: int | None = None
    command_timeout_s: float | None = None
    ttl_s: float | None = None
    idle_timeout_s: float | None = None
    connections: int | None = None
    """To the network at once."""
    network_bytes_per_s: int | None = None
    """To and from the network together; 0 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """A secret's name and keys; `updated_at` is unix seconds."""

    name: str
    keys: tuple[str, ...]
    updated_at: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """A secret as an environment variable of every command."""

    env_var: str
    secret_name: str
    key: str = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokeredSecret:
    """A secret that stays outside: commands get a placeholder, which is swapped in one header on its way to one host."""

    env_var: str
    secret_name: str
    host: str
    key: str = "value"
    header: str = "authorization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a session uses now."""

    cpu_s: float
    """CPU time so far; two readings make a rate."""
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Where a person is asked before a call goes on; nothing takes a gate away again."""

    egress: bool = False
    """Hosts that are added to the list of the session."""
    write_paths: tuple[str, ...] = ()
    """Changes through the file API at or below these paths, and what takes them along."""
    workspace: bool = False
    """Deleting the workspace of the session's tenant."""
    secrets: bool = False
    """Secrets whose values the sandbox would see."""
    commands: tuple[str, ...] = ()
    """Patterns (RE2), searched in the text of commands and programs. Advisory: code can be written so that none finds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session; times are unix seconds, 0 means never."""

    session_id: str
    phase: str
    runtime_class: str
    tenant_id: str
    expires_at: int
    idle_at: int
    created_at: int
    env_keys: tuple[str, ...]
    background_runs: int
    allowed_hosts: tuple[str, ...]
    image: str
    warm: bool
    parent_session_id: str
    child_session_ids: tuple[str, ...]
    limits: Limits
    secret_env_vars: tuple[str, ...] = ()
    brokered_secrets: tuple[BrokeredSecret, ...] = ()
    network: str = ""
    """none, list or open."""
    owner: str = ""
    usage: Usage | None = None
    """Only where `sessions` was asked `with_usage`."""
    gates: Gates = field(default_factory=Gates)
    """All that hold: its own, its parent's, its tenant's and the server's."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """What an upload or a download copied."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """What was left out of a download: links that lead elsewhere, and devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file; a `path` that is not UTF-8 is text with `surrogateescape`, as everywhere in Python."""

    path: str
    type: str
    size: int
    modified: float
    mode: int = 0
    target: str = ""


@dataclass(frozen=True, slots=True)
class FileChange:
    kind: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecInfo:
    """A command, a background run or a terminal's program, as a list shows it."""

    exec_id: str
    command: str
    """The beginning of what it runs; perhaps only the program, after a restart of the server or where nobody reads it."""
    pid: int
    """Inside the sandbox; 0 until it has started."""
    started_at: float
    running: bool
    takes_input: bool
    has_terminal: bool
    is_kept: bool
    """Its output is kept for whoever comes: that of background runs and terminals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    pid: int
    comm: str
    state: str
    args: str = ""
    """All its arguments, joined by spaces; nothing of a zombie. Of very long ones, the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceInfo:
    tenant_id: str
    disk_bytes: int
    last_used: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    available: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    pid: int
    data_dir: str
    version: str
    doors: dict[str, str]
    runtimes: dict[str, RuntimeInfo]
    pool: list[dict[str, object]]
    sessions: int
    egress: dict[str, int] = field(default_factory=dict)
    """What the network decided since the server started, in numbers."""
    default_hosts: tuple[str, ...] = ()
    """What a session that brings no list of its own may reach."""
    max_mcp_chars: int = 0
    """The most characters of text that an MCP client may ask for in one answer; 0 where the server does not say."""
