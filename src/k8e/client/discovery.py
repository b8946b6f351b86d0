"""Where the server is and whom to trust, found without being told.

In this order. Endpoint: the argument, `K8E_SANDBOX_ENDPOINT`, the chosen profile, `config.json`, a server of this
machine, 127.0.0.1:50051. Trust: `K8E_SANDBOX_CERT` (with `K8E_SANDBOX_KEY` it is our own certificate), what a login to
this endpoint left in the certificate directory, the CA of this machine's server, the CA in `/etc/k8e/k8e.yaml`, the
system's roots. Identity: an API key, else our own certificate, else what the kernel says of a caller on this machine.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from k8e.client.errors import InvalidRequest
from k8e.client.light.calls import MESSAGE_BYTES
from k8e.client.light.places import SYSTEM_DATA_DIR, data_dirs, doors, own_data_dir, unix_path
from k8e.client.light.profiles import Connection, config_path, connection, home, plain_address, profiles_path

__all__ = ["DEFAULT_ENDPOINT", "SYSTEM_DATA_DIR", "Target", "data_dirs", "default_tenant", "discover", "own_data_dir"]

DEFAULT_ENDPOINT = "127.0.0.1:50051"
KUBECONFIG = Path("/etc/k8e/k8e.yaml")
CA_FILES = ("sandbox-ca.crt", "serving-kube-apiserver.crt")

_CA_DATA = re.compile(r"certificate-authority-data:\s*([A-Za-z0-9+/=]+)")


def own_cert_dir() -> Path:
    return home(os.environ)  # noqa: TID251 - making a client is an entry point


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server to talk to."""

    endpoint: str
    found: str
    """How the endpoint was chosen, for people."""
    roots: bytes | None = None
    """PEM; None means the system's roots."""
    key: bytes | None = None
    certificate: bytes | None = None
    trust: str = "the system's roots"
    api_key: str = field(default="", repr=False)
    owner: str = ""
    """For whom an administrator speaks; empty means for oneself."""
    socket: str = ""
    """The unix socket of this machine's own server, which is the shorter way; empty means through TLS."""
    tried: tuple[str, ...] = ()
    """Where an endpoint was looked for before this one was taken, for people."""
    cert_dir: Path = field(default_factory=own_cert_dir)
    """Where a login leaves what the next client looks for."""

    def is_loopback(self) -> bool:
        host = self.endpoint.rpartition(":")[0].strip("[]")
        return host in {"localhost", "::1"} or host.startswith("127.")

    def described(self) -> str:
        """Where it is, and why there, for people."""
        if self.socket:
            return f"{self.socket} (from {self.found})"
        return f"{self.endpoint} (from {self.found}; trusting {self.trust})"

    def channel_options(self) -> list[tuple[str, str | int]]:
        """What a channel of grpc to it needs, whichever half of the library makes it."""
        options: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
        ]
        if self.is_loopback():
            # A proxy named in the environment is for the network, never for this machine.
            options.append(("grpc.enable_http_proxy", 0))
            # Whatever name this machine has for itself: the CA is what counts here.
            options.append(("grpc.ssl_target_name_override", "localhost"))
        return options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries: who asks, where the connection does not say it, and for whom."""
        bearer = (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        return (*bearer, ("k8e-owner", self.owner)) if self.owner else bearer


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Whom to believe at an endpoint, and as whom to go there."""

    roots: bytes | None = None
    words: str = "the system's roots"
    key: bytes | None = None
    certificate: bytes | None = None


def discover(
    endpoint: str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    api_key: str | None = None,
    profile: str | None = None,
    owner: str = "",
) -> Target:
    """The server to use. Raises: InvalidRequest; OSError when a file that was named cannot be read."""
    env = os.environ if environ is None else environ  # noqa: TID251 - making a client is an entry point
    place = connection(endpoint or "", profile or "", env)
    address, found, home, tried = _endpoint(place, env)
    key = _word(env.get("K8E_SANDBOX_APIKEY", "") if api_key is None else api_key, "api_key")
    trust = _trust(address, place.cert_dir, [home] if home else data_dirs(env), env)
    return Target(
        endpoint=address,
        found=found,
        roots=trust.roots,
        trust=trust.words,
        key=trust.key,
        certificate=trust.certificate,
        api_key=key,
        owner=_word(owner, "owner"),
        # Certificates that were named, or are ours by a login, are meant to be used, and only TLS has a use for them.
        socket=unix_path(home) if home and not trust.key and not env.get("K8E_SANDBOX_CERT") else "",
        tried=tried,
        cert_dir=place.cert_dir,
    )


def default_tenant(environ: Mapping[str, str] | None = None) -> str:
    """Whose session a client uses when nobody says."""
    env = os.environ if environ is None else environ  # noqa: TID251 - making a client is an entry point
    return env.get("K8E_SANDBOX_TENANT", "")


def _endpoint(place: Connection, env: Mapping[str, str]) -> tuple[str, str, Path | None, tuple[str, ...]]:
    """The endpoint, how it was found, the directory of the local server it is of, and where it was looked for before."""
    if place.endpoint:
        return place.endpoint, place.found, None, ()
    tried = [
        "K8E_SANDBOX_ENDPOINT (not set)",
        f"{profiles_path(env)} (no profile chosen)",
        f"{config_path(env)} (no endpoint)",
    ]
    for directory in data_dirs(env):
        if local := _local_door(directory):
            return local, str(directory), directory, tuple(tried)
        tried.append(f"{directory / 'server' / 'server.json'} (names no server)")
    return DEFAULT_ENDPOINT, "the default", None, tuple(tried)


def _word(text: str, name: str) -> str:
    """Text that may travel as metadata."""
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise InvalidRequest(f"{name}: must be printable ASCII without spaces")
    return text


def _trust(endpoint: str, cert_dir: Path, directories: list[Path], env: Mapping[str, str]) -> Trust:
    key_path, certificate_path = env.get("K8E_SANDBOX_KEY", ""), env.get("K8E_SANDBOX_CERT", "")
    if key_path and not certificate_path:
        raise InvalidRequest("K8E_SANDBOX_KEY: needs the certificate that belongs to it in K8E_SANDBOX_CERT")
    if certificate_path and not key_path:
        return Trust(roots=Path(certificate_path).read_bytes(), words=certificate_path)
    known = enrolled_trust(endpoint, cert_dir) or _local_trust(directories)
    if not certificate_path:
        return known
    return replace(known, key=Path(key_path).read_bytes(), certificate=Path(certificate_path).read_bytes())


def enrolled_trust(endpoint: str, cert_dir: Path) -> Trust | None:
    """What a login to exactly this endpoint left; a certificate is never shown to another server."""
    stamp = _content(cert_dir / "endpoint")
    roots = _content(cert_dir / "ca.crt")
    if stamp is None or roots is None or plain_address(stamp.decode("utf-8", "replace").strip()) != endpoint:
        return None
    key, certificate = _content(cert_dir / "client.key"), _content(cert_dir / "client.crt")
    both = key is not None and certificate is not None
    return Trust(
        roots=roots,
        words=str(cert_dir / "ca.crt"),
        key=key if both else None,
        certificate=certificate if both else None,
    )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _local_door(directory: Path) -> str:
    return plain_address(doors(directory).get("grpc", ""))


def _local_trust(directories: list[Path]) -> Trust:
    for path in _ca_paths(directories):
        try:
            return Trust(roots=path.read_bytes(), words=str(path))
        except OSError:
            continue
    try:
        if match := _CA_DATA.search(KUBECONFIG.read_text()):
            return Trust(roots=base64.b64decode(match[1]), words=str(KUBECONFIG))
    except (OSError, binascii.Error):
        pass
    return Trust()


def _ca_paths(directories: list[Path]) -> Iterator[Path]:
    for directory in directories:
        for name in CA_FILES:
            yield directory / "server" / "tls" / name
