"""Logging in: an API key goes in once, a certificate of this machine's own comes out and is kept where clients look."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from k8e import __version__
from k8e._proto import sandbox_pb2 as pb
from k8e.client.errors import ServerFailed, Unauthenticated
from k8e.client.light.profiles import home, write
from k8e.client.people import LoginInfo
from k8e.client.requesting import key_and_request
from k8e.client.transport import QUICK_S, Transport

__all__ = ["LoginCalls"]


class LoginCalls(Transport):
    async def login(self, device_name: str = "", cert_dir: str | os.PathLike[str] | None = None) -> LoginInfo:
        """Get a certificate for this client's API key, or a new one for its certificate, and keep it.

        Later clients of the same endpoint use it without the key. The CA must be known already; where it is not, `k8e
        sandbox login --ca-fingerprint …` finds it out safely. Raises: Unauthenticated, Unsupported.
        """
        if not (self._target.api_key or self._target.certificate):
            raise Unauthenticated("login needs an API key: give api_key=, or set K8E_SANDBOX_APIKEY")
        device = device_name or socket.gethostname()
        key, request = key_and_request(device)
        asked = pb.LoginRequest(csr=request, device_name=device, client_version=__version__)
        answer = await self._call(self._stub.Login, asked, timeout_s=QUICK_S)
        if not (answer.cert and answer.ca_cert):
            raise ServerFailed("the server answered without a certificate; nothing was stored")
        directory = home(os.environ) if cert_dir is None else Path(cert_dir)  # noqa: TID251 - as `discover` does
        store(directory, self._target.endpoint, key=key, certificate=answer.cert.encode(), ca=answer.ca_cert.encode())
        return LoginInfo(endpoint=self._target.endpoint, cert_dir=str(directory), valid_days=answer.valid_days)


def store(directory: Path, endpoint: str, *, key: bytes, certificate: bytes, ca: bytes) -> None:
    """The stamp goes first and comes last: without it the other files are not used."""
    (directory / "endpoint").unlink(missing_ok=True)
    write(directory / "client.key", key, 0o600)
    write(directory / "client.crt", certificate, 0o644)
    write(directory / "ca.crt", ca, 0o644)
    write(directory / "endpoint", endpoint.encode() + b"\n", 0o644)
