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

__all__ = ["OPTIONS", "Option", "ServerSettings", "address", "load"]

DEFAULT_PORT = 50051
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}

Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    data_dir: Path
    tools_dir: str = ""
    """A data directory whose set-up is shared: several servers on one machine need gVisor only once. Empty: ours."""
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
    default_memory: int = 512 * 2**20
    default_disk: int = 2**30
    pool_min: int = 2
    pool_max: int = 16
    sessions_per_owner: int = 500
    rate_writes: int = 1000
    """Calls a second that one owner may make to do something; twice as many at once. 0 is no limit."""
    rate_reads: int = 5000
    """The same for calls that only look."""
    allow_open_network: bool = False
    """Whether a session may ask for the whole internet."""
    default_hosts: tuple[str, ...] = ()
    """Reached by sessions that bring no list, besides the hosts of pip, npm and GitHub."""
    mcp_grace: int = 60
    """Seconds that the sandboxes of an MCP client which was cut off wait for its return."""
    gates: tuple[str, ...] = ()
    """Where a person is asked before a call goes on, in every session besides its own gates."""
    metrics_listen: str = "127.0.0.1:9640"
    """host:port of the page of numbers, always a loopback address; empty is none."""
    otel_endpoint: str = ""
    """Where traces go (OTLP over HTTP); empty is nowhere."""
    log_level: str = "info"

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
    if not 0 < value < 4096:
        raise ValueError(text)
    return value


def size(text: str) -> int:
    """Bytes: `1073741824`, `512Mi`, `1G`."""
    match = re.fullmatch(r"(\d+)([KMG]i?)?B?", text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise ValueError(text)
    return int(match[1]) * UNITS[(match[2] or "").upper()]


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
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


OPTIONS = (
    Option("tools_dir", str, "use what another data directory's set-up built"),
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
    Option("default_cpu", cpus, "CPUs of a session: 1, 0.5 or 500m (default 1)"),
    Option("default_memory", size, "memory of a session: 512Mi (default), 1G or bytes"),
    Option("default_disk", size, "disk of a session (default 1Gi)"),
    Option("pool_min", count, "warm sandboxes that are always kept (default 2)"),
    Option("pool_max", count, "warm sandboxes at most, per template (default 16)"),
    Option("sessions_per_owner", count, "sessions that one owner may hold (default 500)"),
    Option("rate_writes", count, "calls a second by which one owner may do something (default 1000, 0 any)"),
    Option("rate_reads", count, "calls a second by which one owner may look (default 5000, 0 any)"),
    Option(
        "allow_open_network", flag, "whether sessions may have the open network: true or false (default)", bare=True
    ),
    Option("default_hosts", hosts, "hosts that sessions without a list may reach, too, separated by commas"),
    Option("mcp_grace", count, "seconds that sandboxes of an MCP client which was cut off wait for it (default 60)"),
    Option(
        "gates",
        gates,
        "ask a person in every session, separated by commas: egress, write=PATH, workspace, secrets, command=PATTERN",
    ),
    Option("metrics_listen", metrics, "loopback host:port of /metrics (default 127.0.0.1:9640), or off"),
    Option("otel_endpoint", collector, "send traces to this collector, such as http://127.0.0.1:4318 (default: none)"),
    Option("log_level", level, "debug, info (default), warning or error"),
)


def load(
    data_dir: Path, *, flags: Mapping[str, str | None], environ: Mapping[str, str], file: Path | None = None
) -> ServerSettings:
    """The settings. Raises: InvalidSpec naming the one that is wrong and where it came from."""
    given: dict[str, Value] = {}
    for source, values in (
        (str(file), _from_file(file) if file else {}),
        ("environment", {option.name: environ.get(f"K8E_SANDBOX_{option.name.upper()}") for option in OPTIONS}),
        ("flag", flags),
    ):
        given |= {option.name: _parsed(option, text, source) for option in OPTIONS if (text := values.get(option.name))}
    return dataclasses.replace(ServerSettings(data_dir=data_dir), **given)  # type: ignore[arg-type]  # parsed by name


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
