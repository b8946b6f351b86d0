"""The server's certificate, kept in `<data>/server/tls` beside the authority that signs it.

It is made anew when it is damaged, ends within 30 days, was signed by another CA, or lacks a name it should have.
"""

from __future__ import annotations

import array
import datetime
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from k8e import whole
from k8e.errors import StoreFailed
from k8e.identity.authority import AnyName, Authority, general_name, load_key, write_key

__all__ = ["Authority", "ServerCertificate", "ensure_server_certificate", "host_names"]

SERVER_DAYS = 90
RENEW_DAYS = 30
SIOCGIFCONF = 0x8912
IFREQ_BYTES = 40
ADDRESSES_MOST = 1024
IPV6_ADDRESSES = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """PEM texts, and where clients find the CA."""

    key: bytes
    chain: bytes
    """The certificate, then the CA: a client that pins the CA by its fingerprint finds it in the handshake."""
    ca: bytes
    ca_path: Path


def ensure_server_certificate(directory: Path, *, names: Iterable[str], now: datetime.datetime) -> ServerCertificate:
    """The certificate to serve with, made or renewed where needed."""
    authority = Authority.open(directory, now=now)
    wanted = [general_name(name) for name in dict.fromkeys(names)]
    certificate_path, key_path = directory / "sandbox-server.crt", directory / "sandbox-server.key"
    if not _still_good(certificate_path, key_path, authority, wanted, now):
        _issue(authority, wanted, certificate_path, key_path, now)
    chain = certificate_path.read_bytes() + authority.pem
    return ServerCertificate(key=key_path.read_bytes(), chain=chain, ca=authority.pem, ca_path=authority.path)


def host_names() -> list[str]:
    """Every name this machine may be dialled by."""
    addresses = [*interface_addresses(), *interface_addresses_v6()]
    return ["localhost", "127.0.0.1", "::1", socket.gethostname(), *addresses]


def interface_addresses() -> list[str]:
    """Every IPv4 address of every interface."""
    table = array.array("B", bytes(ADDRESSES_MOST * IFREQ_BYTES))
    place, length = table.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iP", length, place))
    filled, _ = struct.unpack("iP", answer)
    # Each row is an interface's name in 16 bytes and a sockaddr, in which the address begins at the fifth byte.
    return [socket.inet_ntoa(table[at + 20 : at + 24].tobytes()) for at in range(0, filled, IFREQ_BYTES)]


def interface_addresses_v6() -> list[str]:
    """The IPv6 addresses that others can dial."""
    try:
        rows = IPV6_ADDRESSES.read_text().split("\n")
    except OSError:
        return []  # this kernel has no IPv6
    found = [ipaddress.IPv6Address(bytes.fromhex(row.split()[0])) for row in rows if row]
    return [str(address) for address in found if not (address.is_link_local or address.is_loopback)]


def _issue(
    authority: Authority, names: list[AnyName], certificate_path: Path, key_path: Path, now: datetime.datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = authority.sign_server(key.public_key(), names=names, now=now, days=SERVER_DAYS)
    write_key(key_path, key)
    whole.replace(certificate_path, certificate.public_bytes(Encoding.PEM), mode=0o644, durable=True)


def _still_good(
    certificate_path: Path, key_path: Path, authority: Authority, names: list[AnyName], now: datetime.datetime
) -> bool:
    try:
        certificate, key = x509.load_pem_x509_certificate(certificate_path.read_bytes()), load_key(key_path)
    except (FileNotFoundError, ValueError, StoreFailed):
        return False  # not there, or damaged: either way there is none
    if certificate.not_valid_after_utc - now < datetime.timedelta(days=RENEW_DAYS):
        return False
    if certificate.public_key() != key.public_key() or not authority.has_signed(certificate):
        return False
    has = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names) <= set(has)
