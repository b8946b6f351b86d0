"""Client certificates: for proven keys only, good exactly as long as their API key."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from k8e.errors import InvalidSpec, StoreFailed
from k8e.identity import ApiKey, Office
from tests.support.door import Clock
from tests.support.requests import PrivateKey, request_pem

DAY_S = 86400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def office(tmp_path: Path, clock: Clock) -> Office:
    return Office.open(tmp_path, clock=clock)


@pytest.fixture
def key(office: Office) -> ApiKey:
    return office.keys.create("laptop")[0]


def issued(office: Office, key: ApiKey) -> x509.Certificate:
    pem = office.certificates.issue(request_pem(ec.generate_private_key(ec.SECP256R1())), key, device_name="d")
    return x509.load_pem_x509_certificate(pem)


def known(office: Office, certificate: x509.Certificate) -> ApiKey | None:
    return office.certificates.key_of(certificate.public_bytes(Encoding.DER))


@pytest.mark.parametrize(
    "private",
    [
        pytest.param(ec.generate_private_key(ec.SECP256R1()), id="P-256"),
        pytest.param(ec.generate_private_key(ec.SECP384R1()), id="P-384"),
        pytest.param(rsa.generate_private_key(65537, 2048), id="RSA-2048"),
        pytest.param(ed25519.Ed25519PrivateKey.generate(), id="Ed25519"),
    ],
)
def test_a_certificate_is_the_keys_and_nothing_that_the_request_says(
    office: Office, key: ApiKey, private: PrivateKey
) -> None:
    pem = office.certificates.issue(request_pem(private, name="root"), key, device_name="d")
    certificate = x509.load_pem_x509_certificate(pem)
    assert [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["laptop"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert office.authority.has_signed(certificate)
    assert 90 <= (certificate.not_valid_after_utc - certificate.not_valid_before_utc).total_seconds() / DAY_S < 91
    assert known(office, certificate) == key


def forged() -> str:
    """A request in which the public key is not the one that signed."""
    mine = request_pem(ec.generate_private_key(ec.SECP256R1()))
    der = x509.load_pem_x509_csr(mine.encode()).public_bytes(Encoding.DER)
    bad = x509.load_der_x509_csr(der[:-1] + bytes([der[-1] ^ 1]))
    return bad.public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    "csr",
    [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "\0",
        "ä" * 100,
        "x" * 100_000,
        forged(),
        request_pem(rsa.generate_private_key(65537, 1024)),
        request_pem(dsa.generate_private_key(2048)),
        request_pem(ec.generate_private_key(ec.SECP192R1())),
    ],
    ids=["empty", "nonsense", "no-csr", "nul", "unicode", "huge", "forged", "RSA-1024", "DSA", "P-192"],
)
def test_another_request_is_refused_by_its_field(office: Office, key: ApiKey, csr: str) -> None:
    with pytest.raises(InvalidSpec, match=r"^csr: "):
        office.certificates.issue(csr, key, device_name="d")
    assert known(office, issued(office, key)) == key


def test_the_ledger_says_for_whom_and_how_long(office: Office, key: ApiKey, tmp_path: Path) -> None:
    certificate = issued(office, key)
    path = tmp_path / "tls" / "sandbox-issued.json"
    (row,) = json.loads(path.read_text())["issued"]
    assert (row["key_name"], row["key_id"], row["device_name"], row["revoked_at"]) == ("laptop", key.key_id, "d", 0)
    assert int(row["serial"], 16) == certificate.serial_number
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_deleted_keys_certificates_end_and_a_new_key_of_the_name_revives_none(
    office: Office, key: ApiKey, tmp_path: Path, clock: Clock
) -> None:
    other, _ = office.keys.create("other")
    gone, renewed, kept = issued(office, key), issued(office, key), issued(office, other)
    assert [known(office, each) for each in (gone, renewed, kept)] == [key, key, other]
    assert office.certificates.revoke(office.keys.delete("laptop")) == 2
    office.keys.create("laptop")
    again = Office.open(tmp_path, clock=clock)
    for at in (office, again):
        assert [known(at, each) for each in (gone, renewed, kept)] == [None, None, other]


def test_deleting_the_key_alone_is_enough(office: Office, key: ApiKey) -> None:
    certificate = issued(office, key)
    assert known(office, certificate) == key
    office.keys.delete("laptop")
    assert known(office, certificate) is None


def test_a_certificate_ends_with_its_time_or_with_its_keys(office: Office, key: ApiKey, clock: Clock) -> None:
    brief, _ = office.keys.create("brief", ttl_s=DAY_S)
    long, short = issued(office, key), issued(office, brief)
    clock.ahead_s = 2 * DAY_S
    assert (known(office, long), known(office, short)) == (key, None)
    clock.ahead_s = 91 * DAY_S
    assert known(office, long) is None
    assert known(office, issued(office, key)) == key


def test_a_certificate_of_our_ca_that_is_not_in_the_ledger_is_nobodys(office: Office, key: ApiKey) -> None:
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    now = issued(office, key).not_valid_before_utc
    stranger = office.authority.sign_client(public, common_name="laptop", now=now, days=1)
    assert office.authority.has_signed(stranger)
    assert known(office, stranger) is None


def test_entries_leave_the_ledger_long_after_their_certificates_have_ended(
    office: Office, key: ApiKey, clock: Clock, tmp_path: Path
) -> None:
    issued(office, key)
    clock.ahead_s = 100 * DAY_S
    issued(office, key)
    rows = tmp_path / "tls" / "sandbox-issued.json"
    assert len(json.loads(rows.read_text())["issued"]) == 2
    clock.ahead_s = 121 * DAY_S
    issued(office, key)
    assert len(json.loads(rows.read_text())["issued"]) == 2


def test_a_ledger_that_is_not_ours_stops_the_server(office: Office, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "tls" / "sandbox-issued.json").write_text("{}")
    with pytest.raises(StoreFailed, match=r"sandbox-issued\.json"):
        Office.open(tmp_path, clock=clock)
