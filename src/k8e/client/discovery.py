"""Where the server is and whom to trust, found without being told.

In this order. Endpoint: the argument, `K8E_SANDBOX_ENDPOINT`, a server of this machine, 127.0.0.1:50051. Trust:
`K8E_SANDBOX_CERT` (with `K8E_SANDBOX_KEY` it is our own certificate), the CA of this machine's server, the CA in
`/etc/k8e/k8e.yaml`, the system's roots.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from k8e.client.light.places import SYSTEM_DATA_DIR, data_dirs, doors, own_data_dir

__all__ = ["DEFAULT_ENDPOINT", "SYSTEM_DATA_DIR", "Target", "data_dirs", "discover", "own_data_dir"]

DEFAULT_ENDPOINT = "127.0.0.1:50051"
KUBECONFIG = Path("/etc/k8e/k8e.yaml")
CA_FILES = ("sandbox-ca.crt", "serving-kube-apiserver.crt")

_CA_DATA = re.compile(r"certificate-authority-data:\s*([A-Za-z0-9+/=]+)")


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

    def is_loopback(self) -> bool:
        host = self.endpoint.rpartition(":")[0].strip("[]")
        return host in {"localhost", "::1"} or host.startswith("127.")


def discover(endpoint: str | None = None, environ: Mapping[str, str] | None = None) -> Target:
    """The server to use. Raises: OSError when a file that was named cannot be read."""
    env = os.environ if environ is None else environ  # noqa: TID251 - making a client is an entry point
    address, found, home = _endpoint(endpoint, env)
    key_path, certificate_path = env.get("K8E_SANDBOX_KEY", ""), env.get("K8E_SANDBOX_CERT", "")
    if certificate_path and not key_path:
        return Target(endpoint=address, found=found, roots=Path(certificate_path).read_bytes(), trust=certificate_path)
    roots, trust = _roots([home] if home else data_dirs(env))
    return Target(
        endpoint=address,
        found=found,
        roots=roots,
        trust=trust,
        key=Path(key_path).read_bytes() if key_path else None,
        certificate=Path(certificate_path).read_bytes() if certificate_path else None,
    )


def _endpoint(given: str | None, env: Mapping[str, str]) -> tuple[str, str, Path | None]:
    if given:
        return _address(given), "the argument", None
    if named := env.get("K8E_SANDBOX_ENDPOINT"):
        return _address(named), "K8E_SANDBOX_ENDPOINT", None
    for directory in data_dirs(env):
        if local := _local_door(directory):
            return local, str(directory), directory
    return DEFAULT_ENDPOINT, "the default", None


def _address(text: str) -> str:
    return text.partition("://")[2].rstrip("/") if "://" in text else text


def _local_door(directory: Path) -> str:
    return _address(doors(directory).get("grpc", ""))


def _roots(directories: list[Path]) -> tuple[bytes | None, str]:
    for path in _ca_paths(directories):
        try:
            return path.read_bytes(), str(path)
        except OSError:
            continue
    try:
        if match := _CA_DATA.search(KUBECONFIG.read_text()):
            return base64.b64decode(match[1]), str(KUBECONFIG)
    except (OSError, binascii.Error):
        pass
    return None, "the system's roots"


def _ca_paths(directories: list[Path]) -> Iterator[Path]:
    for directory in directories:
        for name in CA_FILES:
            yield directory / "server" / "tls" / name
