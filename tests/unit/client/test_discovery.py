"""Where a client finds its server and whom it trusts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8e.client import discovery
from k8e.client.discovery import discover
from k8e.client.errors import InvalidRequest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a server of its own."""
    monkeypatch.setattr(discovery, "KUBECONFIG", tmp_path / "k8e.yaml")
    return tmp_path


def data_dir(root: Path, *, endpoint: str = "", ca: bytes = b"", socket: str = "") -> dict[str, str]:
    (root / "server" / "tls").mkdir(parents=True)
    if endpoint:
        doors = {"grpc": f"grpcs://{endpoint}", **({"connect": f"unix://{socket}"} if socket else {})}
        (root / "server" / "server.json").write_text(json.dumps({"pid": 1, "doors": doors}))
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


def test_a_server_of_this_machine_is_reached_through_its_socket(home: Path) -> None:
    env = data_dir(home, endpoint="127.0.0.1:7", ca=b"CA", socket="/run/k8e.sock")
    target = discover(environ=env, api_key="k")
    assert (target.socket, target.described()) == ("/run/k8e.sock", f"/run/k8e.sock (from {home})")


def test_what_only_tls_has_a_use_for_goes_by_tls(home: Path) -> None:
    env = data_dir(home, endpoint="127.0.0.1:7", ca=b"CA", socket="/run/k8e.sock")
    (home / "cert").write_bytes(b"CERT")
    (home / "key").write_bytes(b"KEY")
    named = {"K8E_SANDBOX_CERT": str(home / "cert")}
    assert discover("127.0.0.1:7", env).socket == ""
    assert discover(environ=env | named).socket == ""
    assert discover(environ=env | named | {"K8E_SANDBOX_KEY": str(home / "key")}).socket == ""
    enrolled = home / "enrolled"
    enrolled.mkdir()
    for name, content in {"endpoint": "127.0.0.1:7", "ca.crt": "CA", "client.crt": "C", "client.key": "K"}.items():
        (enrolled / name).write_text(content)
    assert discover(environ=env | {"K8E_SANDBOX_CERT_DIR": str(enrolled)}).socket == ""
    (enrolled / "client.key").unlink()  # the control: without a certificate of our own there is nothing to show
    assert discover(environ=env | {"K8E_SANDBOX_CERT_DIR": str(enrolled)}).socket == "/run/k8e.sock"


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


@pytest.fixture
def kept(home: Path) -> Path:
    """What a login to box.example:443 leaves."""
    directory = home / "sandbox"
    directory.mkdir()
    for name, content in (
        ("endpoint", "box.example:443\n"),
        ("ca.crt", "CA"),
        ("client.crt", "CERT"),
        ("client.key", "KEY"),
    ):
        (directory / name).write_text(content)
    return directory


def test_a_login_is_used_for_the_endpoint_it_was_made_for_and_for_no_other(home: Path, kept: Path) -> None:
    env = {"K8E_DATA_DIR": str(home / "none"), "K8E_SANDBOX_CERT_DIR": str(kept)}
    same = discover("box.example:443", env)
    assert (same.roots, same.certificate, same.key) == (b"CA", b"CERT", b"KEY")
    other = discover("other.example:443", env)
    assert (other.roots, other.certificate, other.key) == (None, None, None)


def test_a_login_without_its_key_is_only_trust(home: Path, kept: Path) -> None:
    (kept / "client.key").unlink()
    found = discover("box.example:443", {"K8E_SANDBOX_CERT_DIR": str(kept), "K8E_DATA_DIR": str(home / "none")})
    assert (found.roots, found.certificate, found.key) == (b"CA", None, None)


def test_profiles_and_config_come_between_the_environment_and_this_machine(home: Path) -> None:
    env = data_dir(home, endpoint="127.0.0.1:7", ca=b"CA") | {"K8E_SANDBOX_CERT_DIR": str(home)}
    assert discover(None, env).endpoint == "127.0.0.1:7"
    (home / "config.json").write_text('{"mode": "remote", "endpoint": "config.example:1"}')
    assert discover(None, env).endpoint == "config.example:1"
    (home / "profiles.yaml").write_text(
        "current_profile: lab\nprofiles:\n  lab: {endpoint: 'lab.example:2'}\n  prod: {endpoint: 'prod.example:3'}\n"
    )
    assert discover(None, env).endpoint == "lab.example:2"
    assert discover(None, env | {"K8E_SANDBOX_PROFILE": "prod"}).endpoint == "prod.example:3"
    assert discover(None, env | {"K8E_SANDBOX_PROFILE": "prod"}, profile="lab").endpoint == "lab.example:2"
    assert discover(None, env | {"K8E_SANDBOX_ENDPOINT": "env.example:4"}).endpoint == "env.example:4"
    with pytest.raises(InvalidRequest, match="'nowhere' is not in"):
        discover(None, env, profile="nowhere")


def test_a_key_comes_from_the_argument_or_the_environment_and_travels_as_metadata(home: Path) -> None:
    env = {"K8E_DATA_DIR": str(home), "K8E_SANDBOX_APIKEY": "from-env"}
    assert discover(None, env).metadata() == (("authorization", "Bearer from-env"),)
    named = discover(None, env, api_key="given", owner="uid:7")
    assert named.metadata() == (("authorization", "Bearer given"), ("k8e-owner", "uid:7"))
    assert discover(None, env, api_key="").metadata() == ()
    assert "from-env" not in repr(discover(None, env))
    with pytest.raises(InvalidRequest, match="api_key"):
        discover(None, env, api_key="two\nlines")


def test_a_key_file_without_its_certificate_is_refused(home: Path) -> None:
    with pytest.raises(InvalidRequest, match="K8E_SANDBOX_CERT"):
        discover(None, {"K8E_DATA_DIR": str(home), "K8E_SANDBOX_KEY": "/key"})


def test_what_was_tried_is_told_where_nothing_was_named(home: Path) -> None:
    env = {"K8E_DATA_DIR": str(home / "none"), "K8E_SANDBOX_CERT_DIR": str(home)}
    tried = "; ".join(discover(None, env).tried)
    for part in ("K8E_SANDBOX_ENDPOINT", "profiles.yaml", "config.json", "none/server/server.json"):
        assert part in tried
    local = discover(None, data_dir(home, endpoint="127.0.0.1:7") | {"K8E_SANDBOX_CERT_DIR": str(home)})
    assert "server.json" not in "; ".join(local.tried)
    assert discover("a:1", env).tried == ()
