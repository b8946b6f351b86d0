"""Secrets that stay outside: a session's commands get placeholders, the network swaps them on the way to one host.

A placeholder is made of the sandbox's name and what it stands for, so it is the same after a restart and worth nothing
anywhere else: it is swapped for this sandbox, this host and this header only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from k8e.engine import lists
from k8e.engine.boxes import Box
from k8e.engine.files import Files
from k8e.engine.secrets import Secrets
from k8e.engine.settings import EgressSettings
from k8e.errors import HostUnsupported, InvalidSpec, K8eError, NotFound
from k8e.model import Brokered, EgressMode, Grant, OwnerId, SandboxId, SessionSpec
from k8e.policy.decide import decide_name
from k8e.policy.names import BadName, canonical

__all__ = ["TRUST_AT", "Brokering", "placeholder", "resolved"]

_log = logging.getLogger(__name__)

SetGrants = Callable[[SandboxId, tuple[Grant, ...]], Awaitable[str]]
"""The substrate's."""

TRUST_AT: Final = "/etc/k8e-trust.crt"
"""Where a sandbox finds the certificates to trust: its image's, the operator's, and that of its own authority."""
TRUST_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "npm_config_cafile",
)
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_BUNDLE_BYTES: Final = 4 * 1024 * 1024
_FIELD: Final = "brokered_secrets"
_PORT: Final = 443
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,64}")
_RESERVED: Final = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "range", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that say how a message is to be read: no place for a secret."""
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_VALUE_BYTES: Final = range(8, 4097)
"""Shorter ones would be found in every other response, longer ones do not fit a header."""


def placeholder(sandbox: SandboxId, each: Brokered) -> str:
    """What commands see in place of a value."""
    what = "\0".join((sandbox, each.env_var, each.secret_name, each.key, each.host, each.header))
    return f"k8e_{hashlib.sha256(what.encode()).hexdigest()[:40]}"


def resolved(spec: SessionSpec, settings: EgressSettings) -> SessionSpec:
    """The spec with hosts in one form, and with them on its list. Raises: InvalidSpec."""
    if not spec.brokered:
        return spec
    if spec.network is EgressMode.NONE:
        raise InvalidSpec("a session without a network has nobody to send a secret to", field=_FIELD)
    brokered = tuple(_checked(each) for each in spec.brokered)
    if len({(each.host, each.header) for each in brokered}) < len(brokered):
        raise InvalidSpec("two secrets for the same header of the same host", field=_FIELD)
    spec = dataclasses.replace(spec, brokered=brokered)
    for each in brokered:
        if not _is_allowed(spec, each.host, settings):
            # Whoever binds a secret to a host wants it reached; a denial on the list still wins.
            spec = lists.changed(spec, add=[each.host])
        if not _is_allowed(spec, each.host, settings):
            raise InvalidSpec(f"the session's list denies {each.host}", field=_FIELD)
    return spec


class Brokering:
    def __init__(self, secrets: Secrets, set_grants: SetGrants, settings: EgressSettings) -> None:
        self._secrets = secrets
        self._set_grants = set_grants
        self._settings = settings

    def check(self, owner: OwnerId, spec: SessionSpec) -> None:
        """Raises: InvalidSpec when a secret is missing or cannot be sent in a header."""
        for each in spec.brokered:
            self._value(owner, each)

    async def give(self, owner: OwnerId, spec: SessionSpec, box: Box) -> None:
        """Let the network swap for this sandbox, and let its programs trust it.

        Raises: InvalidSpec, HostUnsupported where there is no network, SandboxFailed.
        """
        certificate = await self._set_grants(box.id, tuple(self._grant(owner, each, box) for each in spec.brokered))
        if not certificate:
            raise HostUnsupported("secrets cannot be brokered here: this server gives sandboxes no network")
        await self._write_trust(Files(box), certificate)

    async def renew(self, owner: OwnerId, spec: SessionSpec, box: Box) -> None:
        """As they are now: where a secret is gone, or cannot be sent, its placeholder is held back. Raises: SandboxFailed."""
        grants = []
        for each in spec.brokered:
            try:
                grants.append(self._grant(owner, each, box))
            except K8eError as error:
                _log.warning("a secret is no longer brokered", extra={"sandbox": box.id, "reason": str(error)})
                grants.append(_empty(each, box))
        await self._set_grants(box.id, tuple(grants))

    def environment(self, spec: SessionSpec, sandbox: SandboxId) -> dict[str, str]:
        """What commands of a session need in order to use its placeholders."""
        if not spec.brokered:
            return {}
        words = {each.env_var: placeholder(sandbox, each) for each in spec.brokered}
        return {**dict.fromkeys(TRUST_VARIABLES, TRUST_AT), **words}

    def _grant(self, owner: OwnerId, each: Brokered, box: Box) -> Grant:
        return dataclasses.replace(_empty(each, box), value=self._value(owner, each))

    def _value(self, owner: OwnerId, each: Brokered) -> str:
        value = self._secrets.value(owner, each.secret_name, each.key, field=_FIELD).decode("latin-1")
        if not _VALUE.fullmatch(value) or len(value) not in _VALUE_BYTES:
            raise InvalidSpec(
                f"{each.secret_name}:{each.key} cannot be sent in a header: it must be 8 to 4096 printable ASCII "
                "characters without a line's end",
                field=_FIELD,
            )
        return value

    async def _write_trust(self, files: Files, certificate: str) -> None:
        """All in one file, because the variables that name it replace what programs trust otherwise."""
        known = await _first_of(files, _BUNDLES)
        parts = (known, self._settings.ca_bundle or b"", certificate.encode())

        async def pieces() -> AsyncIterator[bytes]:
            for part in parts:
                yield part if part.endswith(b"\n") else part + b"\n"

        await files.write(TRUST_AT, pieces(), perm=0o644)


def _empty(each: Brokered, box: Box) -> Grant:
    return Grant(host=each.host, header=each.header, placeholder=placeholder(box.id, each), value="")


async def _first_of(files: Files, paths: tuple[str, ...]) -> bytes:
    """The content of the first that is there; it came from inside and only goes back there."""
    for path in paths:
        try:
            return b"".join([chunk async for chunk in files.read(path, length=_BUNDLE_BYTES)])
        except (NotFound, InvalidSpec):
            continue
    return b""


def _checked(each: Brokered) -> Brokered:
    try:
        host = canonical(each.host)
    except BadName as error:
        raise InvalidSpec(f"{each.host!r} is no host name: {error.reason}", field=f"{_FIELD}.host") from error
    header = each.header.lower()
    if not _HEADER.fullmatch(header) or header in _RESERVED:
        raise InvalidSpec(f"{each.header!r} is no header for a secret", field=f"{_FIELD}.header")
    return dataclasses.replace(each, host=host, header=header)


def _is_allowed(spec: SessionSpec, host: str, settings: EgressSettings) -> bool:
    return decide_name(lists.policy(spec, settings), host, _PORT).allowed
