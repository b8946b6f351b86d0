"""A registry of images on loopback, as the OCI distribution protocol has it, with whatever faults a test asks for."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import platform
import ssl
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ARCHITECTURE", "Registry", "TestImage", "layer", "member", "serving"]

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
TOKEN = "a-token-of-the-registry"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def member(name: str, content: bytes = b"", *, mode: int = 0o755, kind: bytes = tarfile.REGTYPE) -> Any:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type = len(content), mode, kind
    return info, content


def layer(*members: Any) -> bytes:
    """An uncompressed layer of these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@dataclass(slots=True)
class TestImage:
    """What was put into the registry."""

    __test__ = False
    repository: str
    tag: str
    digest: str
    """Of the index."""
    blobs: list[str]
    """Digests: the configuration's, then the layers'."""


Answer = Callable[["Handler"], bool]
"""Looks at a request first; True says that it has answered."""


@dataclass
class Registry:
    address: str = ""
    documents: dict[tuple[str, str], bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    """User and password, without which nothing is given."""
    has_tokens: bool = False
    """Whether they are exchanged for a token first."""
    asked: list[str] = field(default_factory=list)
    """Paths of requests, in their order."""
    fault: Answer = lambda _handler: False

    def put(
        self,
        name: str,
        *layers: bytes,
        env: Mapping[str, str] | None = None,
        change: Callable[[dict[str, Any]], None] = lambda _manifest: None,
    ) -> TestImage:
        """An image under `repository:tag`, for this machine beside others."""
        repository, _, tag = name.partition(":")
        config = self._blob(json.dumps({"config": {"Env": [f"{k}={v}" for k, v in (env or {}).items()]}}).encode())
        packed = [self._blob(gzip.compress(each, 1, mtime=0)) for each in layers]
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, **config},
            "layers": [{"mediaType": _LAYER, **each} for each in packed],
        }
        change(manifest)
        content = json.dumps(manifest).encode()
        own = {"mediaType": _MANIFEST, "digest": digest_of(content), "size": len(content)}
        index = {
            "schemaVersion": 2,
            "mediaType": _INDEX,
            "manifests": [
                {**own, "digest": f"sha256:{'0' * 64}", "platform": {"os": "windows", "architecture": ARCHITECTURE}},
                {**own, "digest": f"sha256:{'1' * 64}", "platform": {"os": "linux", "architecture": "s390x"}},
                {**own, "platform": {"os": "linux", "architecture": ARCHITECTURE}},
            ],
        }
        top = json.dumps(index).encode()
        self.documents |= {
            (repository, tag): top,
            (repository, digest_of(top)): top,
            (repository, digest_of(content)): content,
        }
        return TestImage(repository, tag, digest_of(top), [config["digest"], *(each["digest"] for each in packed)])

    def _blob(self, content: bytes) -> dict[str, Any]:
        self.blobs[digest_of(content)] = content
        return {"digest": digest_of(content), "size": len(content)}

    def pulled(self, digest: str) -> int:
        """How often a blob was asked for."""
        return sum(path.endswith(f"/blobs/{digest}") for path in self.asked)


class Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.registry.asked.append(self.path)
        if self.path.startswith("/token"):
            self._give_token()
        elif not self.registry.fault(self) and self._is_known():
            self._give()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.registry.asked.append(f"{self.path} {form}")
        self.answer(200, json.dumps({"access_token": TOKEN}).encode())

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        if "/manifests/" in self.path:
            self.send_header("Docker-Content-Digest", digest_of(content))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _is_known(self) -> bool:
        login = self.registry.login
        if login is None or self.headers.get("Authorization", "") == self._expected(login):
            return True
        if self.registry.has_tokens:
            realm = f'Bearer realm="http://{self.registry.address}/token",service="tests",scope="repository:x:pull"'
            self.answer(401, WWW_Authenticate=realm)
        else:
            self.answer(401, WWW_Authenticate='Basic realm="tests"')
        return False

    def _expected(self, login: tuple[str, str]) -> str:
        return f"Bearer {TOKEN}" if self.registry.has_tokens else basic(login)

    def _give_token(self) -> None:
        login = self.registry.login
        if login is not None and self.headers.get("Authorization") != basic(login):
            self.answer(401)
        else:
            self.answer(200, json.dumps({"token": TOKEN}).encode())

    def _give(self) -> None:
        parts = self.path.removeprefix("/v2/").split("/")
        if parts == [""]:
            self.answer(200, b"{}")
            return
        repository, kind, name = "/".join(parts[:-2]), parts[-2], parts[-1]
        found = self.registry.blobs.get(name) if kind == "blobs" else self.registry.documents.get((repository, name))
        if found is None:
            self.answer(404)
        elif kind == "blobs" and (part := self.headers.get("Range")):
            self.answer(206, found[int(part.removeprefix("bytes=").rstrip("-")) :])
        else:
            self.answer(200, found)

    def log_message(self, *_args: object) -> None:
        pass


def basic(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    registry = Registry()
    handler = type("BoundHandler", (Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
