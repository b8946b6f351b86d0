"""Where a client finds its server and whom it trusts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8e.client import discovery
from k8e.client.discovery import discover


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a server of its own."""
    monkeypatch.setattr(discovery, "KUBECONFIG", tmp_path / "k8e.yaml")
    return tmp_path


def data_dir(root: Path, *, endpoint: str = "", ca: bytes = b"") -> dict[str, str]:
    (root / "server" / "tls").mkdir(parents=True)
    if endpoint:
        (root / "server" / "server.json").write_text(json.dumps({"pid": 1, "doors": {"grpc": f"grpcs://{endpoint}"}}))
    if ca:
        (root / "server" / "tls" / "sandbox-ca.crt").write_bytes(ca)
    return {"K8E_DATA_DIR": str(root)}


def test_the_argument_wins_over_everything(home: Path) -> None:
    env = data_dir(home, endpoint="127.0.0.1:7", ca=b"CA") | {"K8E_SANDBOX_ENDPOINT": "b:2"}
    assert discover("a:1", env).endpoint == "a:1"
    assert discover(None, env).endpoint == "b:2"


def test_a_server_of_this_machine_is_found_with_its_ca(home: Path) -> None:
    target = discover(environ=data_dir(home, endpoint="127.0.0.1:7", ca=b"CA"))
    assert (target.endpoint, target.roots, target.is_loopback()) == ("127.0.0.1:7", b"CA", True)


def test_without_anything_the_default_and_the_systems_roots_are_used(home: Path) -> None:
    target = discover(environ={"K8E_DATA_DIR": str(home / "none")})
    assert (target.endpoint, target.roots) == ("127.0.0.1:50051", None)


def test_a_named_certificate_is_the_ca_alone_and_ours_with_a_key(home: Path) -> None:
    (home / "cert").write_bytes(b"CERT")
    (home / "key").write_bytes(b"KEY")
    env = data_dir(home, ca=b"CA") | {"K8E_SANDBOX_CERT": str(home / "cert")}
    assert discover(environ=env).roots == b"CERT"
    both = discover(environ=env | {"K8E_SANDBOX_KEY": str(home / "key")})
    assert (both.roots, both.certificate, both.key) == (b"CA", b"CERT", b"KEY")


def test_the_ca_in_the_kubeconfig_is_used_by_those_who_cannot_read_the_servers(home: Path) -> None:
    (home / "k8e.yaml").write_text("clusters:\n- cluster:\n    certificate-authority-data: Q0E=\n")
    assert discover(environ={"K8E_DATA_DIR": str(home / "none")}).roots == b"CA"


@pytest.mark.parametrize(
    ("endpoint", "loopback"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False), ("box.example:1", False)],
)
def test_loopback_is_known_by_its_address(home: Path, endpoint: str, loopback: bool) -> None:
    assert discover(endpoint, {"K8E_DATA_DIR": str(home)}).is_loopback() is loopback
