"""One certificate authority per sandbox, for the hosts that its brokered secrets are for, and for nothing else.

Only the sandbox itself trusts it, and only the daemon has its key: nobody gains by it what the sandbox's own traffic
does not already give. The key never leaves `dump`, which is for a file that is the daemon's alone.
"""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority"]

_BACKDATE = datetime.timedelta(days=1)
# A sandbox's clock may be behind ours.
_DAYS = 825
# The longest that clients accept of a leaf; sessions live for less.
_MAX_CONTEXTS = 64


class Authority:
    """Signs a certificate for each name once, and keeps it ready to serve with."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[str, ssl.SSLContext] = {}

    @classmethod
    def new(cls, now: datetime.datetime | None = None) -> Authority:
        """A fresh one, valid from yesterday."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "k8e session CA")])
        builder = _certificate(name, name, key.public_key(), now)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, text: str) -> Authority:
        """One that was dumped. Raises: ValueError when the text is not that."""
        key = serialization.load_pem_private_key(text.encode(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("not an elliptic-curve key")
        return cls(key, x509.load_pem_x509_certificate(text.encode()))

    def dump(self) -> str:
        """Key and certificate, so that a restart keeps what running programs already trust."""
        return _pem(self._key) + self.certificate

    @property
    def certificate(self) -> str:
        """What the sandbox must trust, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def context(self, name: str) -> ssl.SSLContext:
        """TLS as that host, HTTP/1.1 only."""
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts[name] = self._new_context(name)
            if len(self._contexts) > _MAX_CONTEXTS:
                self._contexts.pop(next(iter(self._contexts)))
        return context

    def _new_context(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        _load_chain(context, _pem(self._leaf_key) + self._leaf(name))
        return context

    def _leaf(self, name: str) -> str:
        # The common name has a limit of 64 characters and readers ignore it: the name is in the extension.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "k8e brokered host")])
        public = self._leaf_key.public_key()
        builder = _certificate(subject, self._certificate.subject, public, None)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime | None
) -> x509.CertificateBuilder:
    start = (now or datetime.datetime.now(datetime.UTC)) - _BACKDATE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    unused = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False
    )  # fmt: skip
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates, **unused
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _load_chain(context: ssl.SSLContext, text: str) -> None:
    """OpenSSL's binding reads only files; this one is memory of ours that no directory names."""
    with os.fdopen(os.memfd_create("leaf", os.MFD_CLOEXEC), "wb") as file:
        file.write(text.encode())
        file.flush()
        context.load_cert_chain(Path(f"/proc/self/fd/{file.fileno()}"))
