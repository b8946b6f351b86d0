"""`login`: an API key goes in once, a certificate of one's own comes out, and renews itself.

The key is sent only to a server whose CA is known: from an earlier login, from this machine's own files, or by the
fingerprint that the server prints; or when the user says that whoever answers first is to be trusted.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from k8e import __version__
from k8e.cli.output import print_json, say
from k8e.cli.reaching import headers
from k8e.client import certificates
from k8e.client.certificates import Certificates
from k8e.client.errors import Denied, InvalidRequest, SandboxError, Unauthenticated, Unreachable
from k8e.client.light.profiles import Connection, connection
from k8e.client.requesting import key_and_request

if TYPE_CHECKING:
    from k8e.client.discovery import Target

__all__ = ["logged_in", "login", "renew"]

HANDSHAKE_S = 15.0


def login(args: argparse.Namespace) -> int:
    place = connection(args.endpoint or "", args.profile or "", os.environ)
    if not place.endpoint:
        raise InvalidRequest("endpoint: name the server with --endpoint, a profile or K8E_SANDBOX_ENDPOINT")
    made = logged_in(args, place, os.environ)
    days = round(certificates.days_left(made.client))
    say(f"certificate for {place.endpoint} in {place.cert_dir}, good for {days} days; it renews itself")
    print_json({"ok": True, "endpoint": place.endpoint, "cert_dir": str(place.cert_dir), "valid_days": days})
    return 0


def logged_in(args: argparse.Namespace, place: Connection, environ: Mapping[str, str]) -> Certificates:
    """Log in and keep the certificate. Raises: SandboxError, OSError."""
    sent = headers(args, environ)
    if "authorization" not in sent:
        raise Unauthenticated("an API key is needed: set K8E_SANDBOX_APIKEY, or give --apikey")
    ca = authority(args, place, environ)
    target = _target(place.endpoint, place.found, ca)
    made = certified(target, sent, device_name(args.device_name, place, environ))
    certificates.store(place.cert_dir, place.endpoint, made)
    return made


def renew(target: Target, place: Connection, environ: Mapping[str, str]) -> None:
    """Put a new certificate in place of one that ends soon, which is better than none if the server gives no other."""
    try:
        certificates.store(place.cert_dir, target.endpoint, certified(target, {}, device_name("", place, environ)))
    except (SandboxError, OSError) as error:
        left = max(certificates.days_left(target.certificate or b""), 0)
        say(f"the certificate ends in {left:.0f} days and could not be renewed: {error}")


def device_name(given: str, place: Connection, environ: Mapping[str, str]) -> str:
    return given or environ.get("K8E_SANDBOX_DEVICE_NAME") or place.device_name or socket.gethostname()


def certified(target: Target, sent: Mapping[str, str], device: str) -> Certificates:
    from k8e.client.light.remote import RemoteCalls

    key, request = key_and_request(device)
    calls = RemoteCalls(target, sent)
    try:
        answer = calls.unary("Login", {"csr": request, "device_name": device, "client_version": __version__})
    finally:
        calls.close()
    made = Certificates(answer.text("ca_cert").encode(), answer.text("cert").encode(), key)
    return certificates.checked(made, target.roots)


def authority(args: argparse.Namespace, place: Connection, environ: Mapping[str, str]) -> bytes:
    """The CA to trust, in PEM. Raises: Denied when there is no reason to trust any."""
    if args.ca_fingerprint:
        wanted = certificates.pinned(args.ca_fingerprint)
        shown = shown_authority(place.endpoint)
        if certificates.fingerprint(shown) != wanted:
            raise Denied(
                f"{place.endpoint} shows a CA with the fingerprint {certificates.fingerprint(shown)}, not the one you "
                "gave; somebody may be in between, and no key was sent"
            )
        return certificates.pem(shown)
    known = known_authority(place, environ)
    if known is not None:
        return known
    if not args.trust_first_use:
        raise Denied(
            "nothing here says which CA to trust: give --ca-fingerprint with what the server printed at its start "
            "(`k8e server status | jq -r .ca_fingerprint` there), or --trust-first-use"
        )
    shown = shown_authority(place.endpoint)
    say(f"trusting the CA {certificates.fingerprint(shown)} of {place.endpoint} from now on, unseen")
    return certificates.pem(shown)


def known_authority(place: Connection, environ: Mapping[str, str]) -> bytes | None:
    kept = certificates.read(place.cert_dir, place.endpoint)
    if kept is not None:
        return kept.ca
    named = environ.get("K8E_SANDBOX_CERT")
    return Path(named).read_bytes() if named and not environ.get("K8E_SANDBOX_KEY") else None


def shown_authority(endpoint: str) -> bytes:
    """The last certificate of the chain that a server shows, in DER. Nothing is sent, and nothing is trusted yet."""
    host, _, port = endpoint.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as secured,
        ):
            chain = _chain(secured)
    except (OSError, ValueError) as error:
        raise Unreachable(f"no answer from {endpoint}: {error}") from error
    if not chain:
        raise Unreachable(f"{endpoint} shows no certificate")
    return chain[-1]


def _chain(secured: ssl.SSLSocket) -> list[bytes]:
    """Public since Python 3.13; before, only the object inside has it."""
    if hasattr(secured, "get_unverified_chain"):
        return list(secured.get_unverified_chain())
    inner = secured._sslobj  # type: ignore[attr-defined]  # noqa: SLF001
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in inner.get_unverified_chain() or []]


def _target(endpoint: str, found: str, ca: bytes) -> Target:
    from k8e.client.discovery import Target

    return Target(endpoint=endpoint, found=found, roots=ca, trust="the CA that was pinned")
