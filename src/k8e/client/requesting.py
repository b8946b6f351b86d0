"""A new key and the request to certify it: by the `cryptography` library where it is installed, else by openssl."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from k8e.client.errors import Unsupported

__all__ = ["key_and_request"]

OPENSSL_S = 30.0


def key_and_request(name: str) -> tuple[bytes, str]:
    """An EC P-256 key in PEM and a request for its certificate. Raises: Unsupported."""
    try:
        return _by_library(name)
    except ImportError:
        pass
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Unsupported("making a key needs `pip install cryptography` or the program openssl; install one of them")
    return _by_program(openssl, name)


def _by_library(name: str) -> tuple[bytes, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return text, request.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _by_program(openssl: str, name: str) -> tuple[bytes, str]:
    key = _called([openssl, "ecparam", "-name", "prime256v1", "-genkey", "-noout"])
    with tempfile.TemporaryDirectory(prefix="k8e-login-") as directory:
        path = Path(directory) / "key"
        path.touch(0o600)
        path.write_bytes(key)
        # A slash or an equals sign would be openssl's own.
        plain = "".join(each if each.isalnum() or each in ".-_" else "-" for each in name)
        request = _called([openssl, "req", "-new", "-key", str(path), "-subj", f"/CN={plain}"])
    return key, request.decode("ascii")


def _called(argv: list[str]) -> bytes:
    try:
        return subprocess.run(argv, capture_output=True, check=True, timeout=OPENSSL_S).stdout
    except (subprocess.SubprocessError, OSError) as error:
        raise Unsupported(f"openssl could not make a key: {error}") from error
