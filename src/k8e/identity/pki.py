"""The server's own certificate authority and certificate, made at first start and kept in `<data>/server/tls`.

Private keys are 0600 from the moment they exist; certificates are 0644, because clients read them. The server
certificate is made anew when it ends within 30 days, was signed by another CA, or lacks a name it should have.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["ServerCertificate", "ensure_server_certificate", "host_names"]

CA_DAYS = 3650
SERVER_DAYS = 90
RENEW_DAYS = 30
# Clocks of clients may be a little behind ours.
BACKDATE = datetime.timedelta(minutes=5)
SIOCGIFADDR = 0x8915

AnyName = x509.DNSName | x509.IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """PEM texts, and where clients find the CA."""

    key: bytes
    chain: bytes
    ca_path: Path


@dataclass(frozen=True, slots=True)
class Issuer:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def ensure_server_certificate(directory: Path, *, names: Iterable[str], now: datetime.datetime) -> ServerCertificate:
    """The certificate to serve with, made or renewed where needed."""
    directory.mkdir(parents=True, exist_ok=True)
    ca_path = directory / "sandbox-ca.crt"
    issuer = _issuer(ca_path, directory / "sandbox-ca.key", now)
    wanted = [general_name(name) for name in dict.fromkeys(names)]
    certificate_path, key_path = directory / "sandbox-server.crt", directory / "sandbox-server.key"
    if not _still_good(certificate_path, key_path, issuer, wanted, now):
        _issue(issuer, wanted, certificate_path, key_path, now)
    chain = certificate_path.read_bytes() + ca_path.read_bytes()
    return ServerCertificate(key=key_path.read_bytes(), chain=chain, ca_path=ca_path)


def host_names() -> list[str]:
    """Every name this machine may be dialled by."""
    return ["localhost", "127.0.0.1", "::1", socket.gethostname(), *interface_addresses()]


def interface_addresses() -> list[str]:
    """The IPv4 address of each interface that has one."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # this interface has no IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def general_name(name: str) -> AnyName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _issuer(certificate_path: Path, key_path: Path, now: datetime.datetime) -> Issuer:
    if certificate_path.exists() and key_path.exists():
        return Issuer(_load_key(key_path), x509.load_pem_x509_certificate(certificate_path.read_bytes()))
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("K8E Sandbox CA")
    builder = _certificate(name, name, key.public_key(), now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_ca_usage(), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write_key(key_path, key)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return Issuer(key, certificate)


def _issue(
    issuer: Issuer, names: list[AnyName], certificate_path: Path, key_path: Path, now: datetime.datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _certificate(
        _subject("k8e sandbox server"), issuer.certificate.subject, key.public_key(), now, SERVER_DAYS
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = builder.sign(issuer.key, hashes.SHA256())
    _write_key(key_path, key)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _still_good(
    certificate_path: Path, key_path: Path, issuer: Issuer, names: list[AnyName], now: datetime.datetime
) -> bool:
    if not (certificate_path.exists() and key_path.exists()):
        return False
    certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
    if certificate.not_valid_after_utc - now < datetime.timedelta(days=RENEW_DAYS):
        return False
    if certificate.public_key() != _load_key(key_path).public_key() or not _signed_by(certificate, issuer):
        return False
    has = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names) <= set(has)


def _signed_by(certificate: x509.Certificate, issuer: Issuer) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer.certificate)
    except Exception:  # noqa: BLE001 - the library raises three unrelated kinds; each of them means no
        return False
    return True


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
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


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{path} does not hold an elliptic-curve key")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write(path, text, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others for even a moment."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
    temporary.replace(path)
