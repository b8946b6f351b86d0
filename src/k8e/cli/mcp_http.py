"""The HTTP side of `sandbox-mcp` and `a2a`: from flags to a door that is open."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping

from k8e.cli.daemon import client_only
from k8e.cli.output import say
from k8e.cli.running import ensure_running
from k8e.client.discovery import Target, discover
from k8e.client.errors import InvalidRequest, SandboxError, Unreachable, Unsupported
from k8e.client.light.profiles import connection

__all__ = ["DEFAULT_ADDRESS", "address", "serve_http"]

DEFAULT_ADDRESS = "127.0.0.1:8811"
WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104 - named to be told apart, and only with keys


def serve_http(
    args: argparse.Namespace, environ: Mapping[str, str], *, has_mcp: bool = True, public_url: str = ""
) -> int:
    """Serve agents over HTTP until told to stop. Raises: SandboxError."""
    host, port = address(args.http_addr or environ.get("K8E_SANDBOX_MCP_ADDR") or DEFAULT_ADDRESS)
    if trouble := client_only():
        raise Unsupported(f"serving HTTP needs the server's parts: {trouble}")
    # Only now: the protocols' libraries are heavy, and a wrong flag should not wait for them.
    from k8e.web.presence import Patience
    from k8e.web.provenance import is_loopback
    from k8e.web.serving import DoorSettings, listening, serve

    if not is_loopback(host) and not args.require_key:
        raise InvalidRequest(
            f"http-addr: {host} can be reached from elsewhere; add --require-key, so that every request needs an API "
            "key, and let a proxy with TLS stand before it"
        )
    settings = DoorSettings(
        requires_key=args.require_key,
        hosts=frozenset(name.lower() for name in args.allow_host) | ({host} - WILDCARDS),
        origins=frozenset(args.allow_origin),
        tenant_id=environ.get("K8E_SANDBOX_TENANT", ""),
        patience=Patience() if args.grace is None else Patience(grace_s=args.grace),
        has_mcp=has_mcp,
        public_url=public_url,
    )
    server = Backing(args, environ)
    target = server.started()
    try:
        sock = listening(host, port)
    except OSError as error:
        raise InvalidRequest(f"http-addr: cannot listen on {host}:{port}: {error.strerror}") from error
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        say(f"serving agents on http://{shown}:{sock.getsockname()[1]}{'/mcp' if has_mcp else '/a2a'}")

    with contextlib.closing(sock):
        asyncio.run(serve(sock, target, settings, revive=server.revive, ready=ready))
    return 0


class Backing:
    """The server behind the door."""

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._args = args
        self._environ = environ
        self._is_ours = not connection(args.endpoint or "", args.profile or "", environ).endpoint

    def started(self) -> Target:
        """Where it is, started if it is ours to start. Raises: SandboxError."""
        if self._is_ours:
            ensure_running(self._environ)
        try:
            return discover(
                self._args.endpoint, self._environ, api_key=self._args.apikey, profile=self._args.profile,
                owner=self._args.owner or "",
            )  # fmt: skip
        except OSError as error:
            raise Unreachable(f"cannot read {error.filename}: {error.strerror}") from error

    async def revive(self) -> bool:
        """Start it again when it is ours and gone."""
        if not self._is_ours:
            return False
        try:
            await asyncio.to_thread(ensure_running, self._environ)
        except SandboxError as error:
            say(str(error))
            return False
        return True


def address(text: str) -> tuple[str, int]:
    """`host:port`; without a host it is this machine's own loopback. Raises: InvalidRequest."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or " " in host:
        raise InvalidRequest(f"http-addr: {text!r} is not host:port")
    host = host.strip("[]")
    return ("127.0.0.1" if host in {"", "localhost"} else host), int(port)
