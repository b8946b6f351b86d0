"""The files of a login: read, judged by their dates, written so that nobody ever uses half of them."""

from __future__ import annotations

import binascii
import calendar
import hashlib
import re
import time
from pathlib import Path
from typing import NamedTuple

from k8e import whole
from k8e.client.errors import InvalidRequest, ServerFailed
from k8e.client.light.profiles import write

__all__ = ["Certificates", "checked", "days_left", "fingerprint", "forget", "pem", "pinned", "read", "store"]

_VALIDITY = re.compile(rb"\x30.(?:\x17\x0d(?:\d{12})Z)\x17\x0d(\d{12})Z", re.DOTALL)
_DAY_S = 86400
BEGIN = b"-----BEGIN CERTIFICATE-----"


class Certificates(NamedTuple):
    """PEM: whom to trust, who we are, and the proof of it."""

    ca: bytes
    client: bytes
    key: bytes


def read(directory: Path, endpoint: str) -> Certificates | None:
    """What an earlier login at this endpoint left; None where there was none. Raises: OSError."""
    try:
        if (directory / "endpoint").read_text(encoding="utf-8").strip() != endpoint:
            return None
    except FileNotFoundError:
        return None
    return Certificates(*((directory / name).read_bytes() for name in ("ca.crt", "client.crt", "client.key")))


def store(directory: Path, endpoint: str, made: Certificates) -> None:
    """The stamp goes first and comes last: without it the other files are not used."""
    (directory / "endpoint").unlink(missing_ok=True)
    write(directory / "client.key", made.key, 0o600)
    write(directory / "client.crt", made.client, 0o644)
    write(directory / "ca.crt", made.ca, 0o644)
    write(directory / "endpoint", endpoint.encode() + b"\n", 0o644)


def forget(directory: Path) -> None:
    for name in ("endpoint", "client.key", "client.crt", "ca.crt"):
        (directory / name).unlink(missing_ok=True)
    whole.clear(directory, "client.key")


def checked(made: Certificates, roots: bytes | None) -> Certificates:
    """What a server certified, if it did so with a CA that is trusted already. Raises: ServerFailed."""
    if roots is None or der(made.ca) not in (der(each) for each in each_pem(roots)):
        raise ServerFailed("the server certifies with another CA than the one it shows; nothing was stored")
    der(made.client)
    return made


def days_left(certificate: bytes, now_s: float | None = None) -> float:
    """Until a certificate in PEM ends; read off its dates, because parsing it all takes a library."""
    found = _VALIDITY.search(der(certificate))
    if found is None:
        return 0.0
    ends = calendar.timegm(time.strptime(found[1].decode(), "%y%m%d%H%M%S"))
    return (ends - (time.time() if now_s is None else now_s)) / _DAY_S


def der(certificate: bytes) -> bytes:
    """The first certificate of a PEM text. Raises: InvalidRequest."""
    body = certificate.partition(BEGIN)[2].partition(b"-----END CERTIFICATE-----")[0]
    try:
        decoded = binascii.a2b_base64(body)
    except binascii.Error as error:
        raise InvalidRequest("the certificate is not PEM") from error
    if not decoded:
        raise InvalidRequest("the certificate is not PEM")
    return decoded


def each_pem(bundle: bytes) -> list[bytes]:
    """The certificates of a PEM text, one by one."""
    return [BEGIN + each for each in bundle.split(BEGIN)[1:]]


def pem(certificate: bytes) -> bytes:
    text = binascii.b2a_base64(certificate, newline=False)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return b"\n".join([BEGIN, *lines, b"-----END CERTIFICATE-----", b""])


def fingerprint(certificate: bytes) -> str:
    """Of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


def pinned(text: str) -> str:
    """A fingerprint as people copy it, in one form. Raises: InvalidRequest."""
    plain = text.lower().removeprefix("sha256:").replace(":", "").strip()
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise InvalidRequest("ca-fingerprint: must be the 64 hexadecimal digits that the server prints")
    return plain
