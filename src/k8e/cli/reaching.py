"""Which server a command talks to, through which door, and as whom.

This machine's own server through its unix socket, unless an endpoint is named by a flag, the environment, a profile
or `config.json`; that one through gRPC and TLS. An API key goes along either way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from k8e.cli.output import say
from k8e.client.errors import InvalidRequest, Unreachable
from k8e.client.light.calls import Calls
from k8e.client.light.places import data_dirs, own_data_dir, unix_path
from k8e.client.light.profiles import Connection, connection

if TYPE_CHECKING:
    from k8e.client.discovery import Target

__all__ = ["headers", "reach"]

RENEW_DAYS = 30.0


def reach(
    args: argparse.Namespace, environ: Mapping[str, str], *, starts_server: bool, was_lost: bool = False
) -> Calls:
    """The server to talk to, started first if it is ours to start. Raises: SandboxError.

    One that `was_lost` is started only if it has died: somebody may have stopped it.
    """
    place = connection(getattr(args, "endpoint", None) or "", getattr(args, "profile", None) or "", environ)
    sent = headers(args, environ)
    args.account = account(place, sent, environ)
    if place.advice and not was_lost:
        say(place.advice)
    if not place.endpoint:
        if starts_server:
            # Only now: starting processes needs modules that cost as much as a whole call.
            from k8e.cli.running import ensure_running

            ensure_running(environ, only_after_death=was_lost)
        # Certificates that were named are meant to be used, and only TLS has a use for them.
        by_certificate = environ.get("K8E_SANDBOX_CERT") or environ.get("K8E_SANDBOX_KEY")
        if not by_certificate and (path := _local_socket(environ)):
            from k8e.client.light.unix import UnixCalls

            return UnixCalls(path, sent)
    return _remote(args, place, environ, sent)


def account(place: Connection, sent: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """A server and who we are there, as far as we can tell: a session of one account is not another one's."""
    parts = [place.endpoint or str(own_data_dir(environ))]
    if "authorization" in sent:
        import hashlib  # costs a millisecond, which only those with a key pay

        parts.append(f"key {hashlib.sha256(sent['authorization'].encode()).hexdigest()[:16]}")
    elif environ.get("K8E_SANDBOX_KEY"):
        parts.append(f"certificate {environ.get('K8E_SANDBOX_CERT', '')}")
    elif place.endpoint:
        parts.append(f"certificates in {place.cert_dir}")
    if "k8e-owner" in sent:
        parts.append(f"for {sent['k8e-owner']}")
    return ", ".join(parts)


def headers(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Who is asking, where the connection alone does not say it, and for whom."""
    sent: dict[str, str] = {}
    if key := getattr(args, "apikey", None) or environ.get("K8E_SANDBOX_APIKEY", ""):
        sent["authorization"] = f"Bearer {_clean(key, 'apikey')}"
    if owner := getattr(args, "owner", None):
        sent["k8e-owner"] = _clean(owner, "owner")
    return sent


def _clean(text: str, field: str) -> str:
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise InvalidRequest(f"{field}: must be printable and without spaces")
    return text


def _local_socket(environ: Mapping[str, str]) -> str:
    return next(filter(None, map(unix_path, data_dirs(environ))), "")


def _remote(args: argparse.Namespace, place: Connection, environ: Mapping[str, str], sent: Mapping[str, str]) -> Calls:
    try:
        target = _target(args, place, environ)
    except OSError as error:
        raise Unreachable(f"cannot read {error.filename}: {error.strerror}") from error
    if not getattr(args, "uses_sdk", False):
        # grpc loads its asyncio half along with itself. Only the SDK uses it, and it costs as much as `python3 -c pass`.
        sys.modules.setdefault("grpc.aio", ModuleType("grpc.aio"))
    from k8e.client.light.remote import RemoteCalls

    return RemoteCalls(target, sent)


def _target(args: argparse.Namespace, place: Connection, environ: Mapping[str, str]) -> Target:
    """The endpoint with whom to trust there, and our own certificate where we have one for it, renewed in time."""
    from k8e.client.certificates import days_left
    from k8e.client.discovery import discover

    def found() -> Target:
        return discover(getattr(args, "endpoint", None), environ, api_key="", profile=getattr(args, "profile", None))

    target = found()
    if target.certificate is None or environ.get("K8E_SANDBOX_CERT") or days_left(target.certificate) >= RENEW_DAYS:
        return target
    from k8e.cli.login import renew

    renew(target, place, environ)
    return found()
