"""The server's own certificate authority: made at first start, kept in `<data>/server/tls`, and all it signs.

Its private key is 0600 from the moment it exists; its certificate is 0644, because clients read it.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from k8e import whole
from k8e.errors import StoreFailed

__all__ = ["AnyName", "Authority", "PublicKey", "general_name", "load_key", "write_key"]

CA_DAYS = 3650
# Clocks of clients may be a little behind ours.
BACKDATE = datetime.timedelta(minutes=5)

AnyName = x509.DNSName | x509.IPAddress
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    path: Path
    """Where clients find the certificate."""

    @classmethod
    def open(cls, directory: Path, *, now: datetime.datetime) -> Authority:
        """The one in this directory, made where there is none. Raises: StoreFailed."""
        directory.mkdir(parents=True, exist_ok=True)
        path, key_path = directory / "sandbox-ca.crt", directory / "sandbox-ca.key"
        if not (path.exists() and key_path.exists()):
            _make(path, key_path, now)
        return cls(load_key(key_path), _load_certificate(path), path)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate's DER: what a client pins at first contact."""
        return hashlib.sha256(self.certificate.public_bytes(Encoding.DER)).hexdigest()

    def has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except Exception:  # noqa: BLE001 - the library raises three unrelated kinds; each of them means no
            return False
        return True

    def sign_server(
        self, public: PublicKey, *, names: Sequence[AnyName], now: datetime.datetime, days: int
    ) -> x509.Certificate:
        builder = self._leaf("k8e sandbox server", public, ExtendedKeyUsageOID.SERVER_AUTH, now, days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def sign_client(
        self, public: PublicKey, *, common_name: str, now: datetime.datetime, days: int
    ) -> x509.Certificate:
        builder = self._leaf(common_name, public, ExtendedKeyUsageOID.CLIENT_AUTH, now, days)
        return builder.sign(self.key, hashes.SHA256())

    def _leaf(
        self, common_name: str, public: PublicKey, usage: ObjectIdentifier, now: datetime.datetime, days: int
    ) -> x509.CertificateBuilder:
        named = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _certificate(_subject(common_name), self.certificate.subject, public, now, days)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(named, critical=False)
        )


def general_name(name: str) -> AnyName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise StoreFailed(f"{path} does not hold a private key: restore it, or remove it to have a new one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StoreFailed(f"{path} does not hold an elliptic-curve key: remove it to have a new one")
    return key


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    whole.replace(path, text, mode=0o600, durable=True)


def _make(path: Path, key_path: Path, now: datetime.datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("K8E Sandbox CA")
    builder = _certificate(name, name, key.public_key(), now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_ca_usage(), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    write_key(key_path, key)
    whole.replace(path, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), mode=0o644, durable=True)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise StoreFailed(f"{path} does not hold a certificate: restore it, or remove it to have a new one") from error


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(common_name: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "K8E Sandbox")
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _ca_usage() -> x509.KeyUsage:
    unused = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False
    )  # fmt: skip
    return x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **unused)
