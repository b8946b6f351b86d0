"""Client certificates: a signed request and a key in, a certificate out that is the key's caller for 90 days.

A certificate is good while it is in the ledger, not revoked, and its very key lives; so deleting a key ends all of
its certificates at once, renewed ones included, on connections that stand as well.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from k8e.errors import InvalidSpec
from k8e.identity.keys import ApiKey, KeyRing
from k8e.identity.ledger import Issued, Ledger
from k8e.identity.pki import Authority

__all__ = ["CLIENT_DAYS", "ClientCertificates"]

CLIENT_DAYS = 90
CSR_BYTES = 64 * 1024
RSA_BITS = range(2048, 8193)
CURVES = ("secp256r1", "secp384r1", "secp521r1")


class ClientCertificates:
    def __init__(self, authority: Authority, ledger_path: Path, keys: KeyRing, *, clock: Callable[[], float]) -> None:
        self._authority = authority
        self._ledger = Ledger(ledger_path, clock=clock)
        self._keys = keys
        self._clock = clock

    @property
    def ca_pem(self) -> bytes:
        return self._authority.pem

    def issue(self, csr_pem: str, key: ApiKey, *, device_name: str) -> bytes:
        """A certificate in PEM for the public key that the request proves to have. Raises: InvalidSpec."""
        public = proven_key(csr_pem)
        now = self._clock()
        moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
        certificate = self._authority.sign_client(public, common_name=key.name, now=moment, days=CLIENT_DAYS)
        self._ledger.add(
            Issued(
                serial=f"{certificate.serial_number:x}",
                key_id=key.key_id,
                key_name=key.name,
                device_name=device_name,
                fingerprint=fingerprint(certificate.public_bytes(Encoding.DER)),
                issued_at=now,
                expires_at=certificate.not_valid_after_utc.timestamp(),
            )
        )
        return certificate.public_bytes(Encoding.PEM)

    def revoke(self, key: ApiKey) -> int:
        return self._ledger.revoke(key.key_id)

    def key_of(self, der: bytes) -> ApiKey | None:
        """The live key behind a certificate that is still good."""
        issued = self._ledger.good(fingerprint(der))
        return self._keys.with_id(issued.key_id) if issued else None


def fingerprint(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def proven_key(csr_pem: str) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey:
    """The public key of a request whose signature is its own; whatever else it says is not read."""
    if len(csr_pem) > CSR_BYTES:
        raise InvalidSpec(f"is longer than {CSR_BYTES} characters", field="csr")
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        is_own, public = request.is_signature_valid, request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidSpec("is not a PEM certificate request (PKCS #10)", field="csr") from None
    if not is_own:
        raise InvalidSpec("is not signed with its own key", field="csr")
    match public:
        case ec.EllipticCurvePublicKey() if public.curve.name in CURVES:
            return public
        case rsa.RSAPublicKey() if public.key_size in RSA_BITS:
            return public
        case ed25519.Ed25519PublicKey():
            return public
    raise InvalidSpec(
        "has a key of a kind that is not taken: use P-256, P-384, RSA from 2048 bits, or Ed25519", field="csr"
    )
