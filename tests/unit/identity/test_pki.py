"""The certificate authority and the server's certificate."""

from __future__ import annotations

import datetime
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from k8e.identity.pki import ensure_server_certificate, host_names
from tests.support.skips import needs_root

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAMES = ["localhost", "127.0.0.1", "::1"]


def server_certificate(directory: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / "sandbox-server.crt").read_bytes())


def names_of(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def test_first_start_makes_everything_with_the_right_modes(tmp_path: Path) -> None:
    ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        "sandbox-ca.crt": 0o644,
        "sandbox-ca.key": 0o600,
        "sandbox-server.crt": 0o644,
        "sandbox-server.key": 0o600,
    }


def test_the_certificate_carries_every_name_and_is_signed_by_the_ca(tmp_path: Path) -> None:
    ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    certificate = server_certificate(tmp_path)
    ca = x509.load_pem_x509_certificate((tmp_path / "sandbox-ca.crt").read_bytes())
    assert names_of(certificate) == set(NAMES)
    certificate.verify_directly_issued_by(ca)
    assert "CN=K8E Sandbox CA" in ca.subject.rfc4514_string()


def test_a_good_certificate_is_kept(tmp_path: Path) -> None:
    first = ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    later = NOW + datetime.timedelta(days=59)
    assert ensure_server_certificate(tmp_path, names=NAMES, now=later) == first


def test_one_that_ends_soon_or_lacks_a_name_is_made_anew_under_the_same_ca(tmp_path: Path) -> None:
    first = ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    ca = first.ca_path.read_bytes()
    renewed = ensure_server_certificate(tmp_path, names=NAMES, now=NOW + datetime.timedelta(days=61))
    wider = ensure_server_certificate(tmp_path, names=[*NAMES, "box.example"], now=NOW + datetime.timedelta(days=61))
    assert len({first.chain, renewed.chain, wider.chain}) == 3
    assert first.ca_path.read_bytes() == ca
    assert "box.example" in names_of(server_certificate(tmp_path))


def test_a_new_ca_makes_a_new_certificate(tmp_path: Path) -> None:
    first = ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    (tmp_path / "sandbox-ca.key").unlink()
    assert ensure_server_certificate(tmp_path, names=NAMES, now=NOW).chain != first.chain


@pytest.mark.parametrize("name", ["sandbox-server.crt", "sandbox-server.key"])
def test_a_damaged_one_is_made_anew(tmp_path: Path, name: str) -> None:
    first = ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    (tmp_path / name).write_text("garbage")
    renewed = ensure_server_certificate(tmp_path, names=NAMES, now=NOW)
    assert (renewed.ca, renewed.chain == first.chain) == (first.ca, False)
    assert ensure_server_certificate(tmp_path, names=NAMES, now=NOW) == renewed


@needs_root("gives an interface addresses")
def test_every_address_of_an_interface_is_a_name() -> None:
    script = 'ip link set lo up && ip addr add 10.9.0.1/24 dev lo && ip addr add 10.9.0.2/24 dev lo && exec $0 -c "$1"'
    program = "from k8e.identity.pki import interface_addresses as found; print(*found())"
    argv = ["unshare", "-n", "sh", "-c", script, sys.executable, program]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert shown == ["127.0.0.1", "10.9.0.1", "10.9.0.2"]


def test_this_machine_has_its_loopback_names() -> None:
    assert set(NAMES) <= set(host_names())
