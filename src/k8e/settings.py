"""The server's settings: one frozen tree, built once, from defaults < file < environment < flags.

The file is TOML with the same names as the flags (`default_runtime = "container"`); a name it does not know is an
error. Environment variables are `K8E_SANDBOX_<NAME>`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k8e.errors import InvalidSpec, K8eError
from k8e.model import Runtime

__all__ = ["AUTOSTARTED", "OPTIONS", "Option", "ServerSettings", "address", "load"]

DEFAULT_PORT = 50051
AUTOSTARTED = "K8E_SANDBOX_AUTOSTARTED"
"""In the environment of a server that a client has started, and that clients start again."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    data_dir: Path
    tools_dir: str = ""
    """A data directory whose set-up is shared: several servers on one machine need gVisor only once. Empty: ours."""
    gvisor_timeout: float = 900.0
    """Seconds that finding, fetching or building gVisor may take at set-up."""
    gvisor_release: str = ""
    """A release of gVisor's archive and its checksum, `DATE@sha512:SUM`; empty: none is fetched from there."""
    listen: tuple[str, ...] = ()
    """host:port of the gRPC door; empty is 127.0.0.1 with `grpc_port`."""
    grpc_port: int = DEFAULT_PORT
    advertise_hostname: str = ""
    """One more name for the server's certificate."""
    loopback_identity: bool = True
    """Whether a loopback connection without a credential is the user that the kernel says it belongs to."""
    approve_in_person: bool = True
    """Whether a user may decide what its own programs asked, at a terminal or in an agent's window."""
    default_runtime: str = Runtime.GVISOR
    default_image: str = "host"
    default_cpu: float = 1.0
    default_memory: int = 2**30
    default_disk: int = 5 * 2**30
    pool_min: int = 2
    pool_max: int = 16
    max_cpu: float = 0.0
    """The ceilings: the most that one session may ask for. 0 fits the host, or for times and the network is none."""
    max_memory: int = 0
    max_disk: int = 0
    max_processes: int = 0
    max_output: int = 64 * 2**20
    max_run_output: int = 2**30
    max_connections: int = 4096
    max_network_rate: int = 0
    max_command_timeout: float = 0.0
    max_ttl: float = 0.0
    max_idle: float = 0.0
    runs_per_session: int = 32
    terminals_per_session: int = 32
    commands_per_session: int = 256
    ports_per_session: int = 64
    labels_per_session: int = 64
    sessions_per_owner: int = 500
    workspaces_per_owner: int = 500
    cpus_per_owner: float = 0.0
    """What one owner's sessions may have together; 0 is the host's, over-committed."""
    memory_per_owner: int = 0
    disk_per_owner: int = 0
    answers_per_owner: int = 256 * 2**20
    """Memory that the answers of one owner may hold until they are taken."""
    requests_per_owner: int = 256 * 2**20
    """Memory that the requests of one owner may hold until they are answered."""
    kept_output_per_session: int = 256 * 2**20
    """What background runs may leave on the host's disk; the oldest goes first."""
    kept_output_per_owner: int = 4 * 2**30
    kept_runs_per_session: int = 256
    kept_transcript_per_session: int = 8 * 2**20
    kept_events_per_session: int = 4 * 2**20
    kept_events_per_owner: int = 64 * 2**20
    kept_events_age: float = 30 * 86400.0
    kept_audit: int = 2 * 2**30
    """Disk for the audit trail: half for everybody's records, half for what owners do beyond `audit_records_per_owner`."""
    audit_records_per_owner: int = 300
    """A minute, in everybody's half."""
    reserve_memory: int | None = None
    """What stays free on the host; None fits it, 0 is nothing."""
    rate_writes: int = 1000
    """Calls a second that one owner may make to do something; twice as many at once. 0 is no limit."""
    rate_reads: int = 5000
    """The same for calls that only look."""
    image_registries: tuple[str, ...] = ()
    """Where images by name come from, the first for short names; empty is what the host's other tools are told."""
    insecure_registries: tuple[str, ...] = ()
    """Registries that may be asked over plain HTTP, or show a certificate that nobody vouches for."""
    max_image: int = 10 * 2**30
    """Bytes of one image from a registry, as it is sent and as it is unpacked."""
    kept_images: int = 20 * 2**30
    """Disk for images from registries; the longest unused goes first."""
    pull_timeout: float = 900.0
    """Seconds that one image may take to come from its registry."""
    pulls_at_once: int = 2
    pulls_per_owner: int = 8
    """Images that may be pulled for one owner, or wait for it."""
    image_tag_age: float = 3600.0
    """Seconds that a tag means what it meant, before its registry is asked again."""
    allow_open_network: bool = False
    """Whether a session may ask for the whole internet."""
    allow_apt: bool = False
    """Whether packages can be installed in sandboxes of the host image, from the hosts that the host's apt uses."""
    default_hosts: tuple[str, ...] = ()
    """Reached by sessions that bring no list, besides the hosts of pip, npm and GitHub."""
    mcp_grace: int = 60
    """Seconds that the sandboxes of an MCP client which was cut off wait for its return."""
    max_mcp_chars: int = 200_000
    """The most characters of text that an MCP client may ask for in one answer; without asking it gets 25,000."""
    gates: tuple[str, ...] = ()
    """Where a person is asked before a call goes on, in every session besides its own gates."""
    metrics_listen: str = "127.0.0.1:9640"
    """host:port of the page of numbers, always a loopback address; empty is none."""
    otel_endpoint: str = ""
    """Where traces go (OTLP over HTTP); empty is nowhere."""
    log_level: str = "info"
    reserve_disk: int | None = None
    """Bytes of the data directory's disk that sandboxes leave free; None is a twentieth of it, at most 1 GiB."""
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was said of these, by name and as text: a server that is started with it has the same settings."""

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Where to listen, parsed."""
        return tuple(address(text) for text in self.listen or (f"127.0.0.1:{self.grpc_port}",))


@dataclass(frozen=True, slots=True)
class Option:
    """One setting as flags, environment and file know it."""

    name: str
    parse: Callable[[str], Value]
    text: str
    bare: bool = False
    """As a flag it may stand without a value, and then means true."""


def cpus(text: str) -> float:
    """`2`, `0.5` or Kubernetes' `500m`."""
    value = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    if not 0 < value < 10**6:
        raise ValueError("write 2, 0.5 or 500m")
    return value


def size(text: str) -> int:
    """Bytes: `1073741824`, `512Mi`, `1G`."""
    match = re.fullmatch(r"(\d+)([KMGT]i?)?B?", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise ValueError("write a size such as 512Mi, 1G or bytes")
    return int(match[1]) * UNITS[(match[2] or "").upper()]


def duration(text: str) -> float:
    """Seconds: `90`, `15m`, `24h`, `7d`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise ValueError("write a time such as 90, 15m, 2h or 7d")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def some_time(text: str) -> float:
    """A time that is not nothing."""
    value = duration(text)
    if not value:
        raise ValueError("write a time such as 90, 15m or 2h")
    return value


def reserve(text: str) -> int:
    return 0 if text == "0" else size(text)


def audit_size(text: str) -> int:
    """Large enough that the last calls can always be looked up."""
    value = size(text)
    if value < 16 * 2**20:
        raise ValueError("write 16Mi or more")
    return value


def mcp_chars(text: str) -> int:
    """No less than an answer has where nobody asks for more, and no more than the server can hold of many."""
    value = int(text)
    if not 25_000 <= value <= 1_000_000:
        raise ValueError("write 25000 to 1000000")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def connections(text: str) -> int:
    value = count(text)
    if value > 256:
        raise ValueError("write a whole number up to 256: a sandbox carries no more connections")
    return value


def positive(text: str) -> int:
    value = count(text)
    if not value:
        raise ValueError("write a whole number above 0")
    return value


def runtime(text: str) -> str:
    return Runtime(text)


def level(text: str) -> str:
    if text not in {"debug", "info", "warning", "error"}:
        raise ValueError(text)
    return text


def flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def host_name(text: str) -> str:
    """A DNS name or an IP address, as certificates carry them."""
    if len(text) > 253 or not re.fullmatch(r"[A-Za-z0-9*:]([A-Za-z0-9_.:-]*[A-Za-z0-9.])?", text):
        raise ValueError("it is not a host's name")
    return text


def words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def hosts(text: str) -> tuple[str, ...]:
    from k8e.policy import entries  # only a server has the libraries for it

    given = words(text)
    for entry in given:
        try:
            entries.parse(entry)
        except InvalidSpec as error:
            raise ValueError(str(error)) from None
    return given


def image_hosts(text: str) -> tuple[str, ...]:
    given = words(text)
    for entry in given:
        if not re.fullmatch(r"[A-Za-z0-9.\[\]:-]+", entry):
            raise ValueError(f"{entry!r} is not a registry: write host or host:port")
    return given


def image_prefixes(text: str) -> tuple[str, ...]:
    given = words(text)
    image_hosts(",".join(each.partition("/")[0] for each in given))
    if any(not re.fullmatch(r"[^/\s]+(/[a-z0-9._-]+)*", each) for each in given):
        raise ValueError("write registry.example.com or registry.example.com/team")
    return given


def gates(text: str) -> tuple[str, ...]:
    from k8e.engine.gates import parse  # only a server has the libraries for it

    given = words(text)
    try:
        parse(given)
    except K8eError as error:
        raise ValueError(str(error)) from None
    return given


def listen(text: str) -> tuple[str, ...]:
    given = words(text)
    for part in given:
        address(part)
    return given


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def metrics(text: str) -> str:
    if text == "off":
        return ""
    host, _ = address(text)
    if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise ValueError("it is served on loopback addresses only")
    return text


def collector(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError("it is not an http:// or https:// address")
    return text


def gvisor_release(text: str) -> str:
    if not re.fullmatch(r"20\d{6}(\.\d+)?@sha512:[0-9a-f]{128}", text):
        raise ValueError("write the release's date and the SHA-512 of its runsc")
    return text


OPTIONS = (
    Option("tools_dir", str, "use what another data directory's set-up built"),
    Option("gvisor_timeout", some_time, "longest that getting gVisor may take at set-up: 30m, 1h (default 15m)"),
    Option(
        "gvisor_release",
        gvisor_release,
        "fetch this release of gVisor, for this machine's architecture, where PATH has none: 20260105@sha512:SUM",
    ),
    Option("listen", listen, "host:port of the gRPC service, several separated by commas (default 127.0.0.1:50051)"),
    Option("grpc_port", count, "its port on 127.0.0.1, where --listen is not given"),
    Option("advertise_hostname", host_name, "one more name for the server's certificate"),
    Option(
        "loopback_identity",
        flag,
        "whether users of this machine are known by their uid on loopback connections: true (default) or false",
        bare=True,
    ),
    Option(
        "approve_in_person",
        flag,
        "whether a user of this machine may answer its own agent's questions, at a terminal or in the agent's window: "
        "true (default) or false",
        bare=True,
    ),
    Option("default_runtime", runtime, "runtime of sessions that name none: gvisor or container (default gvisor)"),
    Option("default_image", str, "image of sessions that name none (default host)"),
    Option(
        "image_registries",
        image_prefixes,
        "registries that images by name come from, the first for short names: registry.example.com or "
        "registry.example.com/team, separated by commas (default: the host's registries.conf and Docker configuration)",
    ),
    Option("insecure_registries", image_hosts, "registries that may be asked without TLS, separated by commas"),
    Option("max_image", size, "most bytes of one image from a registry, packed and unpacked (default 10Gi)"),
    Option("kept_images", size, "disk for images from registries; the longest unused goes first (default 20Gi)"),
    Option("pull_timeout", some_time, "longest that an image may take to come from its registry (default 15m)"),
    Option("pulls_at_once", positive, "images that come from registries at once (default 2)"),
    Option("pulls_per_owner", positive, "images from registries that may be pulled for one owner, or wait (default 8)"),
    Option("image_tag_age", duration, "how long a tag is believed before its registry is asked again (default 1h)"),
    Option("default_cpu", cpus, "CPUs of a session: 1, 0.5 or 500m (default 1)"),
    Option("default_memory", size, "memory of a session: 1Gi (default), 512Mi or bytes"),
    Option("default_disk", size, "disk of a session (default 5Gi)"),
    Option("pool_min", count, "warm sandboxes that are always kept (default 2)"),
    Option("pool_max", count, "warm sandboxes at most, per template (default 16)"),
    Option("max_cpu", cpus, "most CPUs of one session (default: what the host has)"),
    Option("max_memory", size, "most memory of one session (default: what the host has)"),
    Option("max_disk", size, "most disk of one session (default: the size of the data directory's file system)"),
    Option("max_processes", positive, "most processes of one session (default: a quarter of what the kernel counts)"),
    Option("max_output", size, "most output that one call may return, per stream (default 64Mi)"),
    Option("max_run_output", size, "most output that one background run may keep, per stream (default 1Gi)"),
    Option("max_connections", positive, "most network connections of one session at once (default 4096)"),
    Option("max_network_rate", size, "most bytes a second of one session to and from the network (default: any)"),
    Option("max_command_timeout", duration, "longest that one command may take: 90, 15m, 2h (default: any)"),
    Option("max_ttl", duration, "longest life of a session: 24h, 7d (default: any)"),
    Option("max_idle", duration, "longest that a session may be idle (default: any)"),
    Option("runs_per_session", count, "background runs of one session at once (default 32)"),
    Option("terminals_per_session", count, "terminals of one session at once (default 32)"),
    Option("commands_per_session", positive, "commands of one session at once, runs and terminals too (default 256)"),
    Option("ports_per_session", connections, "connections to servers in one session at once, up to 256 (default 64)"),
    Option("labels_per_session", count, "labels of one session (default 64)"),
    Option("sessions_per_owner", count, "sessions that one owner may hold (default 500)"),
    Option("workspaces_per_owner", count, "workspaces that one owner may keep (default 500)"),
    Option("cpus_per_owner", cpus, "CPUs of one owner's sessions together (default: 256 times the host's)"),
    Option("memory_per_owner", size, "memory of one owner's sessions together (default: 16 times the host's)"),
    Option(
        "disk_per_owner", size, "disk of one owner's sessions and workspaces together (default: 16 times the host's)"
    ),
    Option(
        "reserve_memory",
        reserve,
        "memory that stays free: no new session below it (default 512Mi, less on a small host)",
    ),
    Option("rate_writes", count, "calls a second by which one owner may do something (default 1000, 0 any)"),
    Option("rate_reads", count, "calls a second by which one owner may look (default 5000, 0 any)"),
    Option(
        "allow_open_network", flag, "whether sessions may have the open network: true or false (default)", bare=True
    ),
    Option(
        "allow_apt",
        flag,
        "whether apt-get works in sandboxes of the host image, with the host's package sources: true or false (default)",
        bare=True,
    ),
    Option("default_hosts", hosts, "hosts that sessions without a list may reach, too, separated by commas"),
    Option("mcp_grace", count, "seconds that sandboxes of an MCP client which was cut off wait for it (default 60)"),
    Option("max_mcp_chars", mcp_chars, "most characters of text in one answer to an MCP client (default 200000)"),
    Option(
        "gates",
        gates,
        "ask a person in every session, separated by commas: egress, write=PATH, workspace, secrets, command=PATTERN",
    ),
    Option("metrics_listen", metrics, "loopback host:port of /metrics (default 127.0.0.1:9640), or off"),
    Option("otel_endpoint", collector, "send traces to this collector, such as http://127.0.0.1:4318 (default: none)"),
    Option("answers_per_owner", size, "memory that one owner's answers may hold until they are taken (default 256Mi)"),
    Option(
        "requests_per_owner", size, "memory that one owner's requests may hold until they are answered (default 256Mi)"
    ),
    Option("kept_output_per_session", size, "disk for the output of one session's background runs (default 256Mi)"),
    Option("kept_output_per_owner", size, "disk for the output of one owner's background runs (default 4Gi)"),
    Option("kept_runs_per_session", positive, "background runs that are remembered after their end (default 256)"),
    Option("kept_transcript_per_session", size, "disk for the transcript of one session (default 8Mi)"),
    Option("kept_events_per_session", size, "disk for the events of one session (default 4Mi)"),
    Option("kept_events_per_owner", size, "disk for the events of one owner's sessions (default 64Mi)"),
    Option("kept_events_age", duration, "how long events are kept: 24h, 30d (default 30d)"),
    Option("kept_audit", audit_size, "disk for the audit trail, at least 16Mi (default 2Gi)"),
    Option(
        "audit_records_per_owner",
        positive,
        "audit records of one owner a minute among everybody's; more go to a second trail (default 300)",
    ),
    Option("log_level", level, "debug, info (default), warning or error"),
    Option(
        "reserve_disk",
        reserve,
        "what sandboxes leave free of the host's disk (default a twentieth, at most 1Gi; 0 none)",
    ),
)


def load(
    data_dir: Path, *, flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None = None
) -> ServerSettings:
    """The settings. Raises: InvalidSpec naming the one that is wrong and where it came from."""
    given: dict[str, Value] = {}
    texts: dict[str, str] = {}
    for source, values in (
        (str(file), _from_file(file) if file else {}),
        ("environment", {option.name: environ.get(f"K8E_SANDBOX_{option.name.upper()}") for option in OPTIONS}),
        ("flag", flags),
    ):
        said = {option: text for option in OPTIONS if (text := values.get(option.name))}
        given |= {option.name: _parsed(option, text, source) for option, text in said.items()}
        texts |= {option.name: text for option, text in said.items()}
    if "tools_dir" in texts:
        texts["tools_dir"] = str(Path(texts["tools_dir"]).absolute())
    return dataclasses.replace(ServerSettings(data_dir=data_dir, given=texts), **given)  # type: ignore[arg-type]  # parsed by name


def _parsed(option: Option, text: str, source: str) -> Value:
    try:
        return option.parse(text)
    except ValueError as error:
        raise InvalidSpec(f"{text!r} from {source} is not valid ({option.text}): {error}", field=option.name) from None


def _from_file(path: Path) -> dict[str, str]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidSpec(f"{path}: {error}", field="config") from error
    if unknown := set(read) - {option.name for option in OPTIONS}:
        raise InvalidSpec(f"{path} has unknown names: {', '.join(sorted(unknown))}", field="config")
    return {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in read.items()}
