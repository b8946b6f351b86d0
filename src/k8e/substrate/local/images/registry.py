"""One registry, by the OCI distribution protocol: documents and blobs, each proven by its digest.

A registry's answers are a stranger's: each has a bound, none is believed before its digest fits, and credentials go to the
registry itself and to the place that it names for logging in, over TLS unless the operator calls it insecure.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

import httpx

from k8e.errors import K8eError
from k8e.substrate.local.images.credentials import Credentials
from k8e.substrate.local.images.registries import Source

__all__ = ["DOCUMENT_BYTES", "Answer", "Missing", "Registry", "RegistryFailed", "digest_of"]

DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPTED = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_TOKEN_BYTES = 1024 * 1024
_TRIES = 4
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 20.0
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_REDIRECTS = 5
_TRUSTED = (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))
_REGISTRY_ANSWERS = (httpx.codes.OK, httpx.codes.UNAUTHORIZED)
_CHALLENGE = re.compile(r'(Bearer|Basic)((?:[\s,]+\w+=(?:"[^"]*"|[^\s",]+))*)', re.IGNORECASE)
_FIELD = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s",]+))')
_HUB_PREFIX = "registry-1."
"""The registry that is named by its domain alone answers under this name of it."""


T = TypeVar("T")


class RegistryFailed(K8eError):
    """It could not be asked, or did not do as the protocol says."""


class Missing(RegistryFailed):
    """It has no such image, or none for this caller: registries do not tell which."""


class _Busy(RegistryFailed):
    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    content: bytes
    digest: str


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """Blocking; for one repository, and one thread."""

    def __init__(
        self, source: Source, credentials: Credentials | None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._source = source
        self._credentials = credentials
        self._sleep = sleep
        self._authorization: dict[str, str] = {}
        self._client = httpx.Client(
            verify=_tls(source),
            timeout=_TIMEOUT,
            follow_redirects=True,
            max_redirects=_REDIRECTS,
            event_hooks={"request": [self._check_address]},
            headers={"User-Agent": "k8e"},
        )
        self._base = ""

    def close(self) -> None:
        self._client.close()

    def manifest(self, version: str) -> Answer:
        """A manifest or an index, by tag or digest. Raises: Missing, RegistryFailed."""

        def asked() -> Answer:
            with self._get(f"manifests/{version}", {"Accept": _ACCEPTED}) as response:
                content = _bounded(response, DOCUMENT_BYTES)
            digest = digest_of(content)
            if version.startswith("sha256:") and digest != version:
                raise RegistryFailed(f"{self._source.host} sent another manifest than {version}: it has {digest}")
            return Answer(content, digest)

        return self._retried(asked)

    def digest(self, version: str) -> str:
        """What a tag means now: asked without the content, which some registries count. Raises: as `manifest`."""

        def asked() -> str:
            with self._get(f"manifests/{version}", {"Accept": _ACCEPTED}, method="HEAD") as response:
                return str(response.headers.get("Docker-Content-Digest", ""))

        return self._retried(asked) or self.manifest(version).digest

    def fetch(self, digest: str, size: int, path: Path, heard: Callable[[int], None]) -> None:
        """Write a blob of exactly this size and digest; `heard` is told of every part. Raises: Missing, RegistryFailed."""
        with path.open("wb+") as file:
            self._retried(lambda: self._fetch_rest(digest, size, file, heard))
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if f"sha256:{found}" != digest:
            path.unlink()
            raise RegistryFailed(f"{self._source.host} sent a blob that does not match its digest {digest}")

    def _fetch_rest(self, digest: str, size: int, file: BinaryIO, heard: Callable[[int], None]) -> None:
        """From where an attempt before was cut off, if the registry can do that."""
        here = file.seek(0, 2)
        if here == size > 0:
            return
        headers = (
            {"Range": f"bytes={here}-", "Accept-Encoding": "identity"} if here else {"Accept-Encoding": "identity"}
        )
        with self._get(f"blobs/{digest}", headers) as response:
            if here and response.status_code != httpx.codes.PARTIAL_CONTENT:
                heard(-here)
                here = file.seek(0)
                file.truncate()
            for part in response.iter_raw():
                here += len(part)
                if here > size:
                    raise RegistryFailed(f"{self._source.host} sent more of {digest} than its {size} bytes")
                file.write(part)
                heard(len(part))
        if here < size:
            raise httpx.ReadError(f"only {here} of {size} bytes came")

    @contextmanager
    def _get(self, path: str, headers: Mapping[str, str], *, method: str = "GET") -> Iterator[httpx.Response]:
        """A good answer, after logging in where that is asked for. Raises: Missing, RegistryFailed, httpx.HTTPError."""
        base = self._base or self._find_base()
        url = f"{base}/v2/{self._source.repository}/{path}"
        for is_second in (False, True):
            with self._client.stream(method, url, headers={**headers, **self._authorization}) as response:
                if response.status_code == httpx.codes.UNAUTHORIZED and not is_second:
                    challenge = response.headers.get("WWW-Authenticate", "")
                else:
                    self._check_status(response, path)
                    yield response
                    return
            self._authorization = self._log_in(challenge)

    def _find_base(self) -> str:
        """The address that answers like a registry. Raises: RegistryFailed, httpx.HTTPError."""
        base, status = self._greet(self._source.host)
        if httpx.codes.is_redirect(status):
            base, status = self._greet(f"{_HUB_PREFIX}{self._source.host}")
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _Busy(f"{self._source.host} answers {status}", 0.0)
        if status not in _REGISTRY_ANSWERS:
            raise RegistryFailed(f"{self._source.host} does not answer like a registry: {status} for /v2/")
        self._base = base
        return base

    def _greet(self, host: str) -> tuple[str, int]:
        """Where it listens, and what it answers."""
        secure, plain = f"https://{host}", f"http://{host}"
        try:
            return secure, self._status(secure)
        except httpx.ConnectError:
            if not self._source.is_insecure:
                raise
        return plain, self._status(plain)

    def _status(self, base: str) -> int:
        with self._client.stream("GET", f"{base}/v2/", follow_redirects=False) as response:
            return response.status_code

    def _check_status(self, response: httpx.Response, path: str) -> None:
        status = response.status_code
        if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            return
        name = f"{self._source.host}/{self._source.repository}"
        if status in (httpx.codes.NOT_FOUND, httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            login = "with this host's login" if self._credentials else "without a login"
            raise Missing(f"{name} has no {path.removeprefix('manifests/')} {login} ({status})")
        if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            advice = "; log in there, or use a mirror" if status == httpx.codes.TOO_MANY_REQUESTS else ""
            raise _Busy(f"{name} answers {status} {response.reason_phrase}{advice}", _retry_after(response))
        raise RegistryFailed(f"{name} answers {status} {response.reason_phrase}")

    def _log_in(self, challenge: str) -> dict[str, str]:
        """The header that answers a challenge, which may offer several ways; none where we have nothing to show."""
        ways = {scheme.lower(): fields for scheme, fields in _CHALLENGE.findall(challenge)}
        known = self._credentials
        if "bearer" in ways:
            fields = {name: quoted or plain for name, quoted, plain in _FIELD.findall(ways["bearer"])}
            return {"Authorization": f"Bearer {self._token(fields)}"}
        if "basic" in ways and known is not None:
            secret = base64.b64encode(f"{known.user}:{known.password}".encode()).decode()
            return {"Authorization": f"Basic {secret}"}
        return {}

    def _token(self, fields: Mapping[str, str]) -> str:
        realm = fields.get("realm", "")
        scope = fields.get("scope") or f"repository:{self._source.repository}:pull"
        asked = {"service": fields.get("service", ""), "scope": scope}
        known = self._credentials
        if known is not None and known.identity_token:
            form = {**asked, "grant_type": "refresh_token", "refresh_token": known.identity_token, "client_id": "k8e"}
            request = self._client.build_request("POST", realm, data=form)
        else:
            request = self._client.build_request("GET", httpx.URL(realm).copy_merge_params(asked))
        auth = httpx.BasicAuth(known.user, known.password) if known is not None and known.user else None
        with closing(self._client.send(request, auth=auth, stream=True)) as response:
            if response.status_code != httpx.codes.OK:
                self._check_status(response, f"pull permission at {urlsplit(realm).netloc}")
            try:
                answer = json.loads(_bounded(response, _TOKEN_BYTES))
                return str(answer.get("token") or answer["access_token"])
            except (ValueError, KeyError, AttributeError) as error:
                raise RegistryFailed(f"{urlsplit(realm).netloc} gave no token") from error

    def _check_address(self, request: httpx.Request) -> None:
        """Of every request, also where a registry sends us on. Raises: RegistryFailed."""
        if request.url.scheme != "https" and not self._source.is_insecure:
            raise RegistryFailed(
                f"{self._source.host} leads to {request.url.scheme}://{request.url.host}, which is not encrypted; "
                "the operator may call it insecure (--insecure-registries)"
            )
        if request.url.userinfo:
            raise RegistryFailed(f"{self._source.host} leads to an address with a password in it")

    def _retried(self, work: Callable[[], T]) -> T:
        """What went wrong on the way, or because the registry is busy, is tried again."""
        pause_s = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
            trouble: RegistryFailed
            try:
                return work()
            except _Busy as error:
                trouble, wait_s = error, error.retry_after_s or pause_s
            except httpx.TooManyRedirects as error:
                raise RegistryFailed(f"{self._source.host} sends us round in circles") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                trouble, wait_s = RegistryFailed(f"{self._source.host}: {str(error) or type(error).__name__}"), pause_s
            if not left:
                raise trouble
            self._sleep(min(wait_s, _LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("the last try returns or raises")


def _tls(source: Source) -> ssl.SSLContext:
    """Trusts what the host trusts, and what its container tools are told to trust for this registry."""
    context = ssl.create_default_context()
    if source.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    for directory in (place / source.host for place in _TRUSTED):
        for authority in sorted(directory.glob("*.crt")):
            context.load_verify_locations(authority)
        for certificate in sorted(directory.glob("*.cert")):
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


def _bounded(response: httpx.Response, limit: int) -> bytes:
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > limit:
            raise RegistryFailed(f"{response.url.host} sent a document of more than {limit} bytes")
    return bytes(content)


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0
