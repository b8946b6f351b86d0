"""Whom clients of this server trust: its certificate, kept fresh while it runs, and the CA where they look for it."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
from collections.abc import Callable
from pathlib import Path

from k8e.errors import K8eError
from k8e.identity import Authority, ServerCertificate, ensure_server_certificate, host_names
from k8e.identity.announcing import announce, certificate_text, config_text
from k8e.settings import ServerSettings

__all__ = ["announce_authority", "renew", "server_certificate"]

log = logging.getLogger(__name__)

SYSTEM_DATA_DIR = Path("/var/lib/k8e")
SYSTEM_CONFIG = Path("/etc/k8e/k8e.yaml")
FORMER_CERTIFICATE = "serving-kube-apiserver.crt"
"""Beside the CA: where the former Python SDK looks for whom to trust, without being told."""
RENEW_EVERY_S = 3600.0
"""How often the certificate is looked at; it is made anew a month before it ends."""


def server_certificate(settings: ServerSettings) -> ServerCertificate:
    """The one to serve with now: in time, and with every name that this machine has now."""
    now = datetime.datetime.now(datetime.UTC)
    return ensure_server_certificate(settings.data_dir / "server" / "tls", names=names(settings), now=now)


async def renew(
    settings: ServerSettings, show: Callable[[ServerCertificate], None], *, every_s: float = RENEW_EVERY_S
) -> None:
    """Show a new certificate in good time, and whenever this machine has got another name."""
    shown = server_certificate(settings)
    while True:
        await asyncio.sleep(every_s)
        try:
            wanted = server_certificate(settings)
        except (OSError, ValueError, K8eError):
            log.exception("cannot renew the server's certificate")
            continue
        if wanted != shown:
            show(wanted)
            shown = wanted
            log.info("server certificate renewed")


def names(settings: ServerSettings) -> list[str]:
    """Every name the certificate must carry."""
    listened = [host for host, _ in settings.addresses() if host not in {"0.0.0.0", "::"}]  # noqa: S104 - excluded
    advertised = [settings.advertise_hostname] if settings.advertise_hostname else []
    return [*host_names(), *listened, *advertised]


def announce_authority(settings: ServerSettings, authority: Authority, endpoint: str) -> None:
    """Let every user of this machine find whom to trust, where this is the machine's own server."""
    if settings.data_dir != SYSTEM_DATA_DIR or os.geteuid() != 0:
        return
    former = settings.data_dir / "server" / "tls" / FORMER_CERTIFICATE
    for path, text in (
        (SYSTEM_CONFIG, config_text(authority.pem, endpoint)),
        (former, certificate_text(authority.pem)),
    ):
        try:
            is_ours = announce(path, text)
        except OSError as error:
            log.warning("cannot announce the CA", extra={"path": str(path), "reason": str(error)})
            continue
        if not is_ours:
            log.info("left a file that is not ours as it is", extra={"path": str(path)})
