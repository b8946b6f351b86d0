from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutputChannel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_CHANNEL_UNSPECIFIED: _ClassVar[OutputChannel]
    OUTPUT_CHANNEL_STDOUT: _ClassVar[OutputChannel]
    OUTPUT_CHANNEL_STDERR: _ClassVar[OutputChannel]

class TerminalSignal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TERMINAL_SIGNAL_UNSPECIFIED: _ClassVar[TerminalSignal]
    TERMINAL_SIGNAL_INT: _ClassVar[TerminalSignal]
    TERMINAL_SIGNAL_TERM: _ClassVar[TerminalSignal]
    TERMINAL_SIGNAL_KILL: _ClassVar[TerminalSignal]
    TERMINAL_SIGNAL_TSTP: _ClassVar[TerminalSignal]
    TERMINAL_SIGNAL_HUP: _ClassVar[TerminalSignal]
OUTPUT_CHANNEL_UNSPECIFIED: OutputChannel
OUTPUT_CHANNEL_STDOUT: OutputChannel
OUTPUT_CHANNEL_STDERR: OutputChannel
TERMINAL_SIGNAL_UNSPECIFIED: TerminalSignal
TERMINAL_SIGNAL_INT: TerminalSignal
TERMINAL_SIGNAL_TERM: TerminalSignal
TERMINAL_SIGNAL_KILL: TerminalSignal
TERMINAL_SIGNAL_TSTP: TerminalSignal
TERMINAL_SIGNAL_HUP: TerminalSignal

class SecretRef(_message.Message):
    __slots__ = ("secret_name", "key", "env_var")
    SECRET_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENV_VAR_FIELD_NUMBER: _ClassVar[int]
    secret_name: str
    key: str
    env_var: str
    def __init__(self, secret_name: _Optional[str] = ..., key: _Optional[str] = ..., env_var: _Optional[str] = ...) -> None: ...

class BrokeredSecret(_message.Message):
    __slots__ = ("secret_name", "key", "env_var", "host", "header")
    SECRET_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENV_VAR_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    secret_name: str
    key: str
    env_var: str
    host: str
    header: str
    def __init__(self, secret_name: _Optional[str] = ..., key: _Optional[str] = ..., env_var: _Optional[str] = ..., host: _Optional[str] = ..., header: _Optional[str] = ...) -> None: ...

class SessionLimits(_message.Message):
    __slots__ = ("cpus", "memory_bytes", "processes", "disk_bytes", "output_bytes", "run_output_bytes", "command_timeout_s", "ttl_s", "idle_timeout_s", "connections", "network_bytes_per_s")
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    cpus: float
    memory_bytes: int
    processes: int
    disk_bytes: int
    output_bytes: int
    run_output_bytes: int
    command_timeout_s: float
    ttl_s: float
    idle_timeout_s: float
    connections: int
    network_bytes_per_s: int
    def __init__(self, cpus: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., processes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., run_output_bytes: _Optional[int] = ..., command_timeout_s: _Optional[float] = ..., ttl_s: _Optional[float] = ..., idle_timeout_s: _Optional[float] = ..., connections: _Optional[int] = ..., network_bytes_per_s: _Optional[int] = ...) -> None: ...

class Gates(_message.Message):
    __slots__ = ("egress", "write_paths", "workspace", "secrets", "commands")
    EGRESS_FIELD_NUMBER: _ClassVar[int]
    WRITE_PATHS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    egress: bool
    write_paths: _containers.RepeatedScalarFieldContainer[str]
    workspace: bool
    secrets: bool
    commands: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, egress: _Optional[bool] = ..., write_paths: _Optional[_Iterable[str]] = ..., workspace: _Optional[bool] = ..., secrets: _Optional[bool] = ..., commands: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateSessionRequest(_message.Message):
    __slots__ = ("session_id", "tenant_id", "allowed_hosts", "runtime_class", "env", "secret_refs", "limits", "image", "user", "network", "brokered_secrets", "gates", "labels")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_CLASS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SECRET_REFS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    BROKERED_SECRETS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    tenant_id: str
    allowed_hosts: _containers.RepeatedScalarFieldContainer[str]
    runtime_class: str
    env: _containers.ScalarMap[str, str]
    secret_refs: _containers.RepeatedCompositeFieldContainer[SecretRef]
    limits: SessionLimits
    image: str
    user: str
    network: str
    brokered_secrets: _containers.RepeatedCompositeFieldContainer[BrokeredSecret]
    gates: Gates
    labels: _containers.ScalarMap[str, str]
    def __init__(self, session_id: _Optional[str] = ..., tenant_id: _Optional[str] = ..., allowed_hosts: _Optional[_Iterable[str]] = ..., runtime_class: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., secret_refs: _Optional[_Iterable[_Union[SecretRef, _Mapping]]] = ..., limits: _Optional[_Union[SessionLimits, _Mapping]] = ..., image: _Optional[str] = ..., user: _Optional[str] = ..., network: _Optional[str] = ..., brokered_secrets: _Optional[_Iterable[_Union[BrokeredSecret, _Mapping]]] = ..., gates: _Optional[_Union[Gates, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateSessionResponse(_message.Message):
    __slots__ = ("session_id", "pod_ip", "session")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POD_IP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pod_ip: str
    session: GetSessionResponse
    def __init__(self, session_id: _Optional[str] = ..., pod_ip: _Optional[str] = ..., session: _Optional[_Union[GetSessionResponse, _Mapping]] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session_id", "phase", "runtime_class", "pod_ip", "tenant_id", "expires_at", "env_keys", "secret_env_vars", "background_runs", "allowed_hosts", "image", "limits", "idle_at", "created_at", "warm", "parent_session_id", "child_session_ids", "network", "brokered_secrets", "owner", "usage", "gates", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_CLASS_FIELD_NUMBER: _ClassVar[int]
    POD_IP_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ENV_KEYS_FIELD_NUMBER: _ClassVar[int]
    SECRET_ENV_VARS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_RUNS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    IDLE_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    PARENT_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CHILD_SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    BROKERED_SECRETS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    phase: str
    runtime_class: str
    pod_ip: str
    tenant_id: str
    expires_at: int
    env_keys: _containers.RepeatedScalarFieldContainer[str]
    secret_env_vars: _containers.RepeatedScalarFieldContainer[str]
    background_runs: int
    allowed_hosts: _containers.RepeatedScalarFieldContainer[str]
    image: str
    limits: SessionLimits
    idle_at: int
    created_at: int
    warm: bool
    parent_session_id: str
    child_session_ids: _containers.RepeatedScalarFieldContainer[str]
    network: str
    brokered_secrets: _containers.RepeatedCompositeFieldContainer[BrokeredSecret]
    owner: str
    usage: SessionUsage
    gates: Gates
    labels: _containers.ScalarMap[str, str]
    def __init__(self, session_id: _Optional[str] = ..., phase: _Optional[str] = ..., runtime_class: _Optional[str] = ..., pod_ip: _Optional[str] = ..., tenant_id: _Optional[str] = ..., expires_at: _Optional[int] = ..., env_keys: _Optional[_Iterable[str]] = ..., secret_env_vars: _Optional[_Iterable[str]] = ..., background_runs: _Optional[int] = ..., allowed_hosts: _Optional[_Iterable[str]] = ..., image: _Optional[str] = ..., limits: _Optional[_Union[SessionLimits, _Mapping]] = ..., idle_at: _Optional[int] = ..., created_at: _Optional[int] = ..., warm: _Optional[bool] = ..., parent_session_id: _Optional[str] = ..., child_session_ids: _Optional[_Iterable[str]] = ..., network: _Optional[str] = ..., brokered_secrets: _Optional[_Iterable[_Union[BrokeredSecret, _Mapping]]] = ..., owner: _Optional[str] = ..., usage: _Optional[_Union[SessionUsage, _Mapping]] = ..., gates: _Optional[_Union[Gates, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SessionUsage(_message.Message):
    __slots__ = ("cpu_s", "memory_bytes", "processes")
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    cpu_s: float
    memory_bytes: int
    processes: int
    def __init__(self, cpu_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., processes: _Optional[int] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("phase", "all_owners", "with_usage", "labels", "page_token")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ALL_OWNERS_FIELD_NUMBER: _ClassVar[int]
    WITH_USAGE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    phase: str
    all_owners: bool
    with_usage: bool
    labels: _containers.RepeatedScalarFieldContainer[str]
    page_token: bytes
    def __init__(self, phase: _Optional[str] = ..., all_owners: _Optional[bool] = ..., with_usage: _Optional[bool] = ..., labels: _Optional[_Iterable[str]] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[GetSessionResponse]
    next_page_token: bytes
    def __init__(self, sessions: _Optional[_Iterable[_Union[GetSessionResponse, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class DestroySessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class DestroySessionResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class PauseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class PauseSessionResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ResumeSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ResumeSessionResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ExtendSessionRequest(_message.Message):
    __slots__ = ("session_id", "ttl_s", "idle_timeout_s")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    ttl_s: float
    idle_timeout_s: float
    def __init__(self, session_id: _Optional[str] = ..., ttl_s: _Optional[float] = ..., idle_timeout_s: _Optional[float] = ...) -> None: ...

class UpdateLabelsRequest(_message.Message):
    __slots__ = ("session_id", "set", "remove")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    set: _containers.ScalarMap[str, str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...

class RunSubAgentRequest(_message.Message):
    __slots__ = ("parent_session_id", "agent_type", "workspace_path")
    PARENT_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_PATH_FIELD_NUMBER: _ClassVar[int]
    parent_session_id: str
    agent_type: str
    workspace_path: str
    def __init__(self, parent_session_id: _Optional[str] = ..., agent_type: _Optional[str] = ..., workspace_path: _Optional[str] = ...) -> None: ...

class RunSubAgentResponse(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("session_id", "command", "timeout", "workdir", "background", "language", "argv", "env", "user", "code", "timeout_s", "workdir_bytes", "command_bytes", "exec_id", "with_stdin")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_STDIN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    command: str
    timeout: int
    workdir: str
    background: bool
    language: str
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    env: _containers.ScalarMap[str, bytes]
    user: str
    code: bytes
    timeout_s: float
    workdir_bytes: bytes
    command_bytes: bytes
    exec_id: str
    with_stdin: bool
    def __init__(self, session_id: _Optional[str] = ..., command: _Optional[str] = ..., timeout: _Optional[int] = ..., workdir: _Optional[str] = ..., background: _Optional[bool] = ..., language: _Optional[str] = ..., argv: _Optional[_Iterable[bytes]] = ..., env: _Optional[_Mapping[str, bytes]] = ..., user: _Optional[str] = ..., code: _Optional[bytes] = ..., timeout_s: _Optional[float] = ..., workdir_bytes: _Optional[bytes] = ..., command_bytes: _Optional[bytes] = ..., exec_id: _Optional[str] = ..., with_stdin: _Optional[bool] = ...) -> None: ...

class ExecResponse(_message.Message):
    __slots__ = ("stdout", "stderr", "exit_code", "session_id", "run_id", "status", "duration_ms", "truncated", "language", "reason", "stdout_bytes", "stderr_bytes", "signal", "detail", "egress_denied")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EGRESS_DENIED_FIELD_NUMBER: _ClassVar[int]
    stdout: str
    stderr: str
    exit_code: int
    session_id: str
    run_id: str
    status: str
    duration_ms: int
    truncated: bool
    language: str
    reason: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    signal: int
    detail: str
    egress_denied: _containers.RepeatedCompositeFieldContainer[EgressDenial]
    def __init__(self, stdout: _Optional[str] = ..., stderr: _Optional[str] = ..., exit_code: _Optional[int] = ..., session_id: _Optional[str] = ..., run_id: _Optional[str] = ..., status: _Optional[str] = ..., duration_ms: _Optional[int] = ..., truncated: _Optional[bool] = ..., language: _Optional[str] = ..., reason: _Optional[str] = ..., stdout_bytes: _Optional[bytes] = ..., stderr_bytes: _Optional[bytes] = ..., signal: _Optional[int] = ..., detail: _Optional[str] = ..., egress_denied: _Optional[_Iterable[_Union[EgressDenial, _Mapping]]] = ...) -> None: ...

class ExecStreamResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: str
    def __init__(self, chunk: _Optional[str] = ...) -> None: ...

class OutputChunk(_message.Message):
    __slots__ = ("channel", "offset", "data")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    channel: OutputChannel
    offset: int
    data: bytes
    def __init__(self, channel: _Optional[_Union[OutputChannel, str]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ExecStarted(_message.Message):
    __slots__ = ("exec_id", "session_id")
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    exec_id: str
    session_id: str
    def __init__(self, exec_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class ExecExit(_message.Message):
    __slots__ = ("exit_code", "status", "reason", "signal", "detail", "duration_ms", "truncated", "egress_denied")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    EGRESS_DENIED_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    status: str
    reason: str
    signal: int
    detail: str
    duration_ms: int
    truncated: bool
    egress_denied: _containers.RepeatedCompositeFieldContainer[EgressDenial]
    def __init__(self, exit_code: _Optional[int] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., signal: _Optional[int] = ..., detail: _Optional[str] = ..., duration_ms: _Optional[int] = ..., truncated: _Optional[bool] = ..., egress_denied: _Optional[_Iterable[_Union[EgressDenial, _Mapping]]] = ...) -> None: ...

class ExecInput(_message.Message):
    __slots__ = ("start", "stdin", "eof", "signal", "with_stdin", "exec_id")
    START_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    WITH_STDIN_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    start: ExecRequest
    stdin: bytes
    eof: bool
    signal: int
    with_stdin: bool
    exec_id: str
    def __init__(self, start: _Optional[_Union[ExecRequest, _Mapping]] = ..., stdin: _Optional[bytes] = ..., eof: _Optional[bool] = ..., signal: _Optional[int] = ..., with_stdin: _Optional[bool] = ..., exec_id: _Optional[str] = ...) -> None: ...

class ExecOutput(_message.Message):
    __slots__ = ("started", "chunk", "exit")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    started: ExecStarted
    chunk: OutputChunk
    exit: ExecExit
    def __init__(self, started: _Optional[_Union[ExecStarted, _Mapping]] = ..., chunk: _Optional[_Union[OutputChunk, _Mapping]] = ..., exit: _Optional[_Union[ExecExit, _Mapping]] = ...) -> None: ...

class AttachExecRequest(_message.Message):
    __slots__ = ("session_id", "exec_id", "stdout_offset", "stderr_offset", "stop", "follow")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    STDOUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STDERR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    exec_id: str
    stdout_offset: int
    stderr_offset: int
    stop: bool
    follow: bool
    def __init__(self, session_id: _Optional[str] = ..., exec_id: _Optional[str] = ..., stdout_offset: _Optional[int] = ..., stderr_offset: _Optional[int] = ..., stop: _Optional[bool] = ..., follow: _Optional[bool] = ...) -> None: ...

class WriteInputRequest(_message.Message):
    __slots__ = ("session_id", "exec_id", "offset", "data", "eof", "append")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    exec_id: str
    offset: int
    data: bytes
    eof: bool
    append: bool
    def __init__(self, session_id: _Optional[str] = ..., exec_id: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., eof: _Optional[bool] = ..., append: _Optional[bool] = ...) -> None: ...

class WriteInputResponse(_message.Message):
    __slots__ = ("offset", "closed", "taken")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    offset: int
    closed: bool
    taken: bool
    def __init__(self, offset: _Optional[int] = ..., closed: _Optional[bool] = ..., taken: _Optional[bool] = ...) -> None: ...

class ListExecsRequest(_message.Message):
    __slots__ = ("session_id", "page_token")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    page_token: bytes
    def __init__(self, session_id: _Optional[str] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class ListExecsResponse(_message.Message):
    __slots__ = ("execs", "next_page_token")
    EXECS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    execs: _containers.RepeatedCompositeFieldContainer[ExecInfo]
    next_page_token: bytes
    def __init__(self, execs: _Optional[_Iterable[_Union[ExecInfo, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class ExecInfo(_message.Message):
    __slots__ = ("exec_id", "command", "pid", "started_at", "running", "takes_input", "has_terminal", "is_kept")
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    TAKES_INPUT_FIELD_NUMBER: _ClassVar[int]
    HAS_TERMINAL_FIELD_NUMBER: _ClassVar[int]
    IS_KEPT_FIELD_NUMBER: _ClassVar[int]
    exec_id: str
    command: str
    pid: int
    started_at: float
    running: bool
    takes_input: bool
    has_terminal: bool
    is_kept: bool
    def __init__(self, exec_id: _Optional[str] = ..., command: _Optional[str] = ..., pid: _Optional[int] = ..., started_at: _Optional[float] = ..., running: _Optional[bool] = ..., takes_input: _Optional[bool] = ..., has_terminal: _Optional[bool] = ..., is_kept: _Optional[bool] = ...) -> None: ...

class SignalExecRequest(_message.Message):
    __slots__ = ("session_id", "exec_id", "signal")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXEC_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    exec_id: str
    signal: int
    def __init__(self, session_id: _Optional[str] = ..., exec_id: _Optional[str] = ..., signal: _Optional[int] = ...) -> None: ...

class SignalExecResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttachRunRequest(_message.Message):
    __slots__ = ("run_id", "stdout_offset", "stderr_offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STDOUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STDERR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    stdout_offset: int
    stderr_offset: int
    def __init__(self, run_id: _Optional[str] = ..., stdout_offset: _Optional[int] = ..., stderr_offset: _Optional[int] = ...) -> None: ...

class PipInstallRequest(_message.Message):
    __slots__ = ("session_id", "packages")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    packages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[str] = ..., packages: _Optional[_Iterable[str]] = ...) -> None: ...

class PipInstallResponse(_message.Message):
    __slots__ = ("output", "exit_code")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    output: str
    exit_code: int
    def __init__(self, output: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class PollRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class PollRunResponse(_message.Message):
    __slots__ = ("run_id", "status", "stdout", "stderr", "exit_code", "duration_ms", "truncated", "reason", "stdout_bytes", "stderr_bytes", "signal", "detail", "session_id", "egress_denied", "started_at", "command")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EGRESS_DENIED_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    status: str
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int
    truncated: bool
    reason: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    signal: int
    detail: str
    session_id: str
    egress_denied: _containers.RepeatedCompositeFieldContainer[EgressDenial]
    started_at: float
    command: str
    def __init__(self, run_id: _Optional[str] = ..., status: _Optional[str] = ..., stdout: _Optional[str] = ..., stderr: _Optional[str] = ..., exit_code: _Optional[int] = ..., duration_ms: _Optional[int] = ..., truncated: _Optional[bool] = ..., reason: _Optional[str] = ..., stdout_bytes: _Optional[bytes] = ..., stderr_bytes: _Optional[bytes] = ..., signal: _Optional[int] = ..., detail: _Optional[str] = ..., session_id: _Optional[str] = ..., egress_denied: _Optional[_Iterable[_Union[EgressDenial, _Mapping]]] = ..., started_at: _Optional[float] = ..., command: _Optional[str] = ...) -> None: ...

class KillRunRequest(_message.Message):
    __slots__ = ("run_id", "signal")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    signal: int
    def __init__(self, run_id: _Optional[str] = ..., signal: _Optional[int] = ...) -> None: ...

class KillRunResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("session_id", "page_token")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    page_token: bytes
    def __init__(self, session_id: _Optional[str] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[PollRunResponse]
    next_page_token: bytes
    def __init__(self, runs: _Optional[_Iterable[_Union[PollRunResponse, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class GetProcessesRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetProcessesResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessInfo]
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessInfo, _Mapping]]] = ...) -> None: ...

class ProcessInfo(_message.Message):
    __slots__ = ("pid", "comm", "state", "args")
    PID_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    comm: str
    state: str
    args: str
    def __init__(self, pid: _Optional[int] = ..., comm: _Optional[str] = ..., state: _Optional[str] = ..., args: _Optional[str] = ...) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "content", "mode", "path_bytes", "content_bytes", "perm")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    content: str
    mode: str
    path_bytes: bytes
    content_bytes: bytes
    perm: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., content: _Optional[str] = ..., mode: _Optional[str] = ..., path_bytes: _Optional[bytes] = ..., content_bytes: _Optional[bytes] = ..., perm: _Optional[int] = ...) -> None: ...

class WriteFileResponse(_message.Message):
    __slots__ = ("ok", "size")
    OK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    size: int
    def __init__(self, ok: _Optional[bool] = ..., size: _Optional[int] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("content", "content_bytes")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    content: str
    content_bytes: bytes
    def __init__(self, content: _Optional[str] = ..., content_bytes: _Optional[bytes] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("session_id", "since", "page_token", "page_size")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    since: int
    page_token: bytes
    page_size: int
    def __init__(self, session_id: _Optional[str] = ..., since: _Optional[int] = ..., page_token: _Optional[bytes] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("files", "next_page_token")
    FILES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    next_page_token: bytes
    def __init__(self, files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "modified", "type", "size", "path_bytes", "mode", "target", "modified_s")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_S_FIELD_NUMBER: _ClassVar[int]
    path: str
    modified: int
    type: str
    size: int
    path_bytes: bytes
    mode: int
    target: bytes
    modified_s: float
    def __init__(self, path: _Optional[str] = ..., modified: _Optional[int] = ..., type: _Optional[str] = ..., size: _Optional[int] = ..., path_bytes: _Optional[bytes] = ..., mode: _Optional[int] = ..., target: _Optional[bytes] = ..., modified_s: _Optional[float] = ...) -> None: ...

class ReadStreamRequest(_message.Message):
    __slots__ = ("session_id", "path", "offset", "length", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    offset: int
    length: int
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class ReadStreamResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class WriteStreamOpen(_message.Message):
    __slots__ = ("session_id", "path", "append", "perm", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    append: bool
    perm: int
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., append: _Optional[bool] = ..., perm: _Optional[int] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class WriteStreamRequest(_message.Message):
    __slots__ = ("open", "data")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    open: WriteStreamOpen
    data: bytes
    def __init__(self, open: _Optional[_Union[WriteStreamOpen, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteStreamResponse(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class StatFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "no_follow", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    no_follow: bool
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., no_follow: _Optional[bool] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class ListDirectoryRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive", "since", "path_bytes", "page_token", "page_size")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    recursive: bool
    since: int
    path_bytes: bytes
    page_token: bytes
    page_size: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., recursive: _Optional[bool] = ..., since: _Optional[int] = ..., path_bytes: _Optional[bytes] = ..., page_token: _Optional[bytes] = ..., page_size: _Optional[int] = ...) -> None: ...

class MakeDirectoryRequest(_message.Message):
    __slots__ = ("session_id", "path", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class MakeDirectoryResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class MoveFileRequest(_message.Message):
    __slots__ = ("session_id", "source", "target", "source_bytes", "target_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TARGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    source: str
    target: str
    source_bytes: bytes
    target_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., source_bytes: _Optional[bytes] = ..., target_bytes: _Optional[bytes] = ...) -> None: ...

class MoveFileResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class RemoveFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    recursive: bool
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., recursive: _Optional[bool] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class RemoveFileResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class WatchFilesRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive", "path_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    recursive: bool
    path_bytes: bytes
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., recursive: _Optional[bool] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class FileChange(_message.Message):
    __slots__ = ("kind", "path", "path_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    path: str
    path_bytes: bytes
    def __init__(self, kind: _Optional[str] = ..., path: _Optional[str] = ..., path_bytes: _Optional[bytes] = ...) -> None: ...

class ListWorkspacesRequest(_message.Message):
    __slots__ = ("all_owners",)
    ALL_OWNERS_FIELD_NUMBER: _ClassVar[int]
    all_owners: bool
    def __init__(self, all_owners: _Optional[bool] = ...) -> None: ...

class Workspace(_message.Message):
    __slots__ = ("tenant_id", "disk_bytes", "last_used", "owner")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    disk_bytes: int
    last_used: int
    owner: str
    def __init__(self, tenant_id: _Optional[str] = ..., disk_bytes: _Optional[int] = ..., last_used: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class ListWorkspacesResponse(_message.Message):
    __slots__ = ("workspaces",)
    WORKSPACES_FIELD_NUMBER: _ClassVar[int]
    workspaces: _containers.RepeatedCompositeFieldContainer[Workspace]
    def __init__(self, workspaces: _Optional[_Iterable[_Union[Workspace, _Mapping]]] = ...) -> None: ...

class DeleteWorkspaceRequest(_message.Message):
    __slots__ = ("tenant_id",)
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    def __init__(self, tenant_id: _Optional[str] = ...) -> None: ...

class DeleteWorkspaceResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ConfirmActionRequest(_message.Message):
    __slots__ = ("session_id", "action", "approval_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    action: str
    approval_id: str
    def __init__(self, session_id: _Optional[str] = ..., action: _Optional[str] = ..., approval_id: _Optional[str] = ...) -> None: ...

class ConfirmActionResponse(_message.Message):
    __slots__ = ("approval_id", "approved", "status", "reason", "decided_by", "expires_at")
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    approved: bool
    status: str
    reason: str
    decided_by: str
    expires_at: int
    def __init__(self, approval_id: _Optional[str] = ..., approved: _Optional[bool] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., decided_by: _Optional[str] = ..., expires_at: _Optional[int] = ...) -> None: ...

class ApproveActionRequest(_message.Message):
    __slots__ = ("approval_id", "approved", "reason", "presence")
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    APPROVED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    approved: bool
    reason: str
    presence: str
    def __init__(self, approval_id: _Optional[str] = ..., approved: _Optional[bool] = ..., reason: _Optional[str] = ..., presence: _Optional[str] = ...) -> None: ...

class ApproveActionResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ListApprovalsRequest(_message.Message):
    __slots__ = ("all", "all_owners", "page_token")
    ALL_FIELD_NUMBER: _ClassVar[int]
    ALL_OWNERS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    all: bool
    all_owners: bool
    page_token: bytes
    def __init__(self, all: _Optional[bool] = ..., all_owners: _Optional[bool] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class Approval(_message.Message):
    __slots__ = ("approval_id", "session_id", "action", "status", "asked_by", "decided_by", "reason", "asked_at", "expires_at", "decided_at", "owner", "is_gate")
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    IS_GATE_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    session_id: str
    action: str
    status: str
    asked_by: str
    decided_by: str
    reason: str
    asked_at: int
    expires_at: int
    decided_at: int
    owner: str
    is_gate: bool
    def __init__(self, approval_id: _Optional[str] = ..., session_id: _Optional[str] = ..., action: _Optional[str] = ..., status: _Optional[str] = ..., asked_by: _Optional[str] = ..., decided_by: _Optional[str] = ..., reason: _Optional[str] = ..., asked_at: _Optional[int] = ..., expires_at: _Optional[int] = ..., decided_at: _Optional[int] = ..., owner: _Optional[str] = ..., is_gate: _Optional[bool] = ...) -> None: ...

class ListApprovalsResponse(_message.Message):
    __slots__ = ("approvals", "next_page_token")
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    approvals: _containers.RepeatedCompositeFieldContainer[Approval]
    next_page_token: bytes
    def __init__(self, approvals: _Optional[_Iterable[_Union[Approval, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class CreateApiKeyRequest(_message.Message):
    __slots__ = ("name", "ttl_s", "role", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    ttl_s: float
    role: str
    owner: str
    def __init__(self, name: _Optional[str] = ..., ttl_s: _Optional[float] = ..., role: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class ApiKey(_message.Message):
    __slots__ = ("name", "role", "owner", "created_at", "expires_at", "expired")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    owner: str
    created_at: int
    expires_at: int
    expired: bool
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., owner: _Optional[str] = ..., created_at: _Optional[int] = ..., expires_at: _Optional[int] = ..., expired: _Optional[bool] = ...) -> None: ...

class CreateApiKeyResponse(_message.Message):
    __slots__ = ("info", "key")
    INFO_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    info: ApiKey
    key: str
    def __init__(self, info: _Optional[_Union[ApiKey, _Mapping]] = ..., key: _Optional[str] = ...) -> None: ...

class ListApiKeysRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListApiKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ApiKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[ApiKey, _Mapping]]] = ...) -> None: ...

class DeleteApiKeyRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteApiKeyResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("owner", "identity", "role", "via")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    owner: str
    identity: str
    role: str
    via: str
    def __init__(self, owner: _Optional[str] = ..., identity: _Optional[str] = ..., role: _Optional[str] = ..., via: _Optional[str] = ...) -> None: ...

class LoginRequest(_message.Message):
    __slots__ = ("csr", "device_name", "client_version")
    CSR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    csr: str
    device_name: str
    client_version: str
    def __init__(self, csr: _Optional[str] = ..., device_name: _Optional[str] = ..., client_version: _Optional[str] = ...) -> None: ...

class LoginResponse(_message.Message):
    __slots__ = ("cert", "ca_cert", "valid_days")
    CERT_FIELD_NUMBER: _ClassVar[int]
    CA_CERT_FIELD_NUMBER: _ClassVar[int]
    VALID_DAYS_FIELD_NUMBER: _ClassVar[int]
    cert: str
    ca_cert: str
    valid_days: int
    def __init__(self, cert: _Optional[str] = ..., ca_cert: _Optional[str] = ..., valid_days: _Optional[int] = ...) -> None: ...

class GetTranscriptRequest(_message.Message):
    __slots__ = ("session_id", "offset", "limit")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    offset: int
    limit: int
    def __init__(self, session_id: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetTranscriptResponse(_message.Message):
    __slots__ = ("session_id", "output", "offset", "next_offset", "truncated_before", "eof")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    output: str
    offset: int
    next_offset: int
    truncated_before: bool
    eof: bool
    def __init__(self, session_id: _Optional[str] = ..., output: _Optional[str] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., truncated_before: _Optional[bool] = ..., eof: _Optional[bool] = ...) -> None: ...

class GetEventsRequest(_message.Message):
    __slots__ = ("session_id", "limit", "page_token")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    limit: int
    page_token: bytes
    def __init__(self, session_id: _Optional[str] = ..., limit: _Optional[int] = ..., page_token: _Optional[bytes] = ...) -> None: ...

class GetEventsResponse(_message.Message):
    __slots__ = ("events", "truncated", "returned", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedScalarFieldContainer[str]
    truncated: bool
    returned: int
    next_page_token: bytes
    def __init__(self, events: _Optional[_Iterable[str]] = ..., truncated: _Optional[bool] = ..., returned: _Optional[int] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class SnapshotPutRequest(_message.Message):
    __slots__ = ("name", "layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    layers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., layers: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotPutResponse(_message.Message):
    __slots__ = ("name", "layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    layers: int
    def __init__(self, name: _Optional[str] = ..., layers: _Optional[int] = ...) -> None: ...

class SnapshotGetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SnapshotGetResponse(_message.Message):
    __slots__ = ("name", "layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    layers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., layers: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotListResponse(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateTerminalRequest(_message.Message):
    __slots__ = ("session_id", "argv", "workdir", "env", "rows", "cols")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    workdir: str
    env: _containers.ScalarMap[str, str]
    rows: int
    cols: int
    def __init__(self, session_id: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., workdir: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., rows: _Optional[int] = ..., cols: _Optional[int] = ...) -> None: ...

class CreateTerminalResponse(_message.Message):
    __slots__ = ("terminal_id", "pid")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    pid: int
    def __init__(self, terminal_id: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class TerminalStreamRequest(_message.Message):
    __slots__ = ("terminal_id",)
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    def __init__(self, terminal_id: _Optional[str] = ...) -> None: ...

class TerminalStreamResponse(_message.Message):
    __slots__ = ("data", "exit")
    DATA_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    exit: TerminalExit
    def __init__(self, data: _Optional[bytes] = ..., exit: _Optional[_Union[TerminalExit, _Mapping]] = ...) -> None: ...

class TerminalExit(_message.Message):
    __slots__ = ("exit_code", "signal")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: str
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[str] = ...) -> None: ...

class TerminalWriteRequest(_message.Message):
    __slots__ = ("terminal_id", "data")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    data: bytes
    def __init__(self, terminal_id: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class TerminalWriteResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class TerminalResizeRequest(_message.Message):
    __slots__ = ("terminal_id", "rows", "cols")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLS_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    rows: int
    cols: int
    def __init__(self, terminal_id: _Optional[str] = ..., rows: _Optional[int] = ..., cols: _Optional[int] = ...) -> None: ...

class TerminalResizeResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class TerminalForegroundRequest(_message.Message):
    __slots__ = ("terminal_id",)
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    def __init__(self, terminal_id: _Optional[str] = ...) -> None: ...

class TerminalForegroundResponse(_message.Message):
    __slots__ = ("process_group_id", "input_waiting")
    PROCESS_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_WAITING_FIELD_NUMBER: _ClassVar[int]
    process_group_id: int
    input_waiting: bool
    def __init__(self, process_group_id: _Optional[int] = ..., input_waiting: _Optional[bool] = ...) -> None: ...

class TerminalSignalRequest(_message.Message):
    __slots__ = ("terminal_id", "signal")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    signal: TerminalSignal
    def __init__(self, terminal_id: _Optional[str] = ..., signal: _Optional[_Union[TerminalSignal, str]] = ...) -> None: ...

class TerminalSignalResponse(_message.Message):
    __slots__ = ("process_group_id",)
    PROCESS_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    process_group_id: int
    def __init__(self, process_group_id: _Optional[int] = ...) -> None: ...

class TerminalDestroyRequest(_message.Message):
    __slots__ = ("terminal_id", "grace_ms")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    terminal_id: str
    grace_ms: int
    def __init__(self, terminal_id: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class TerminalDestroyResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ExposeServiceRequest(_message.Message):
    __slots__ = ("session_id", "port", "host")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    port: int
    host: str
    def __init__(self, session_id: _Optional[str] = ..., port: _Optional[int] = ..., host: _Optional[str] = ...) -> None: ...

class ExposeServiceResponse(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class UnexposeServiceRequest(_message.Message):
    __slots__ = ("session_id", "port")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    port: int
    def __init__(self, session_id: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class UnexposeServiceResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ExposedService(_message.Message):
    __slots__ = ("port", "url", "host", "started_at")
    PORT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    port: int
    url: str
    host: str
    started_at: int
    def __init__(self, port: _Optional[int] = ..., url: _Optional[str] = ..., host: _Optional[str] = ..., started_at: _Optional[int] = ...) -> None: ...

class ListExposedRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ListExposedResponse(_message.Message):
    __slots__ = ("services",)
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[ExposedService]
    def __init__(self, services: _Optional[_Iterable[_Union[ExposedService, _Mapping]]] = ...) -> None: ...

class UpdateAllowedHostsRequest(_message.Message):
    __slots__ = ("session_id", "hosts", "add", "remove")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    add: _containers.RepeatedScalarFieldContainer[str]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., add: _Optional[_Iterable[str]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateAllowedHostsResponse(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class PortStart(_message.Message):
    __slots__ = ("session_id", "port")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    port: int
    def __init__(self, session_id: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class PortInput(_message.Message):
    __slots__ = ("start", "data", "eof")
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    start: PortStart
    data: bytes
    eof: bool
    def __init__(self, start: _Optional[_Union[PortStart, _Mapping]] = ..., data: _Optional[bytes] = ..., eof: _Optional[bool] = ...) -> None: ...

class PortConnected(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PortOutput(_message.Message):
    __slots__ = ("connected", "data", "eof")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    connected: PortConnected
    data: bytes
    eof: bool
    def __init__(self, connected: _Optional[_Union[PortConnected, _Mapping]] = ..., data: _Optional[bytes] = ..., eof: _Optional[bool] = ...) -> None: ...

class PullImageRequest(_message.Message):
    __slots__ = ("image", "runtime_class")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_CLASS_FIELD_NUMBER: _ClassVar[int]
    image: str
    runtime_class: str
    def __init__(self, image: _Optional[str] = ..., runtime_class: _Optional[str] = ...) -> None: ...

class PullImageProgress(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes", "image")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done_bytes: int
    total_bytes: int
    image: str
    def __init__(self, phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., image: _Optional[str] = ...) -> None: ...

class ListEgressRequest(_message.Message):
    __slots__ = ("session_id", "limit", "follow")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    limit: int
    follow: bool
    def __init__(self, session_id: _Optional[str] = ..., limit: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class EgressDecision(_message.Message):
    __slots__ = ("time", "session_id", "verdict", "protocol", "name", "address", "port", "rule", "reason", "bytes_sent", "bytes_received", "count")
    TIME_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    time: float
    session_id: str
    verdict: str
    protocol: str
    name: str
    address: str
    port: int
    rule: str
    reason: str
    bytes_sent: int
    bytes_received: int
    count: int
    def __init__(self, time: _Optional[float] = ..., session_id: _Optional[str] = ..., verdict: _Optional[str] = ..., protocol: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class EgressDenial(_message.Message):
    __slots__ = ("host", "port", "reason")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    reason: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SetSecretRequest(_message.Message):
    __slots__ = ("name", "key", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class SetSecretResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSecretsRequest(_message.Message):
    __slots__ = ("all_owners",)
    ALL_OWNERS_FIELD_NUMBER: _ClassVar[int]
    all_owners: bool
    def __init__(self, all_owners: _Optional[bool] = ...) -> None: ...

class SecretInfo(_message.Message):
    __slots__ = ("name", "keys", "updated_at", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    updated_at: int
    owner: str
    def __init__(self, name: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., updated_at: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class ListSecretsResponse(_message.Message):
    __slots__ = ("secrets",)
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[SecretInfo]
    def __init__(self, secrets: _Optional[_Iterable[_Union[SecretInfo, _Mapping]]] = ...) -> None: ...

class DeleteSecretRequest(_message.Message):
    __slots__ = ("name", "key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: str
    def __init__(self, name: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class DeleteSecretResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class ServerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RuntimeStatus(_message.Message):
    __slots__ = ("name", "available", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    available: bool
    detail: str
    def __init__(self, name: _Optional[str] = ..., available: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class ServerStatusResponse(_message.Message):
    __slots__ = ("pid", "data_dir", "doors", "runtimes", "pool_json", "sessions", "version", "egress_json", "ca_fingerprint", "default_hosts", "max_mcp_chars")
    class DoorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PID_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    DOORS_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    POOL_JSON_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EGRESS_JSON_FIELD_NUMBER: _ClassVar[int]
    CA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_HOSTS_FIELD_NUMBER: _ClassVar[int]
    MAX_MCP_CHARS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    data_dir: str
    doors: _containers.ScalarMap[str, str]
    runtimes: _containers.RepeatedCompositeFieldContainer[RuntimeStatus]
    pool_json: str
    sessions: int
    version: str
    egress_json: str
    ca_fingerprint: str
    default_hosts: _containers.RepeatedScalarFieldContainer[str]
    max_mcp_chars: int
    def __init__(self, pid: _Optional[int] = ..., data_dir: _Optional[str] = ..., doors: _Optional[_Mapping[str, str]] = ..., runtimes: _Optional[_Iterable[_Union[RuntimeStatus, _Mapping]]] = ..., pool_json: _Optional[str] = ..., sessions: _Optional[int] = ..., version: _Optional[str] = ..., egress_json: _Optional[str] = ..., ca_fingerprint: _Optional[str] = ..., default_hosts: _Optional[_Iterable[str]] = ..., max_mcp_chars: _Optional[int] = ...) -> None: ...

class StopServerRequest(_message.Message):
    __slots__ = ("destroy",)
    DESTROY_FIELD_NUMBER: _ClassVar[int]
    destroy: bool
    def __init__(self, destroy: _Optional[bool] = ...) -> None: ...

class StopServerResponse(_message.Message):
    __slots__ = ("ok",)
    OK_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    def __init__(self, ok: _Optional[bool] = ...) -> None: ...

class McpStart(_message.Message):
    __slots__ = ("client_id", "tenant_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    tenant_id: str
    def __init__(self, client_id: _Optional[str] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class McpInput(_message.Message):
    __slots__ = ("start", "line")
    START_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    start: McpStart
    line: bytes
    def __init__(self, start: _Optional[_Union[McpStart, _Mapping]] = ..., line: _Optional[bytes] = ...) -> None: ...

class McpOutput(_message.Message):
    __slots__ = ("line",)
    LINE_FIELD_NUMBER: _ClassVar[int]
    line: bytes
    def __init__(self, line: _Optional[bytes] = ...) -> None: ...
