"""Logging in: an API key goes in once, a certificate of this machine's own comes out and is kept where clients look."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from k8e import __version__
from k8e._proto import sandbox_pb2 as pb
from k8e.client.certificates import Certificates, checked, store
from k8e.client.errors import ServerFailed, Unauthenticated
from k8e.client.people import LoginInfo
from k8e.client.requesting import key_and_request
from k8e.client.transport import QUICK_S, Transport

__all__ = ["LoginCalls"]


class LoginCalls(Transport):
    async def login(self, device_name: str = "", cert_dir: str | os.PathLike[str] | None = None) -> LoginInfo:
        """Get a certificate for this client's API key, or a new one for its certificate, and keep it.

        Later clients of the same endpoint, or of the same profile, use it without the key. The CA must be known already; where it is not, `k8e
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
        made = checked(Certificates(answer.ca_cert.encode(), answer.cert.encode(), key), self._target.roots)
        directory = self._target.cert_dir if cert_dir is None else Path(cert_dir)
        store(directory, self._target.endpoint, made)
        return LoginInfo(endpoint=self._target.endpoint, cert_dir=str(directory), valid_days=answer.valid_days)
