"""Who may come in through the agents' HTTP door.

In this order: the request means this machine (`Host`), no web page sent it (`Origin`, and a body that only programs
send unasked), and somebody is known to be behind it: by an API key, which the server judges, or, where no key is required, because the kernel says that the
very connection belongs to the user who runs this process. Nobody else on this machine comes in without a key.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request

from k8e.client.errors import Denied, Exhausted, InvalidRequest, SandboxError
from k8e.http_visitor import Visitor
from k8e.identity.sockdiag import SocketTable
from k8e.web.provenance import Provenance, is_json, is_loopback
from k8e.web.visitors import Visitors

__all__ = ["Gate"]

CHALLENGE = {"www-authenticate": 'Bearer realm="k8e"'}
APPROVER = "approver"
"""Decides what agents ask; nothing behind this door is for it."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Who sends one of these speaks for somebody else, and that one has to show a key."""


class Gate:
    def __init__(
        self, visitors: Visitors, provenance: Provenance, sockets: SocketTable, *, uid: int, requires_key: bool
    ) -> None:
        self._visitors = visitors
        self._provenance = provenance
        self._sockets = sockets
        self._uid = uid
        self._requires_key = requires_key

    async def admit(self, request: Request) -> Visitor:
        """Who is asking. Raises: HTTPException 401, 403, 415, 421, 429 or 503 with a text that says what to do."""
        self.check_provenance(request)
        try:
            visitor = await self._recognized(request)
        except SandboxError as error:
            raise refusal(error) from error
        if visitor.role == APPROVER:
            what = "it may only see and decide approvals, with `k8e sandbox approve`"
            raise HTTPException(HTTPStatus.FORBIDDEN, f"{visitor.identity} is an approver: {what}")
        return visitor

    def check_provenance(self, request: Request) -> None:
        """Raises: HTTPException."""
        host = only(request, "host")
        if not self._provenance.believes_host(host):
            told = "this host is not one of ours; use localhost, or name it with --allow-host"
            raise HTTPException(HTTPStatus.MISDIRECTED_REQUEST, told)
        if not self._provenance.believes_origin(only(request, "origin"), host):
            told = "this web page may not call here; --allow-origin admits one"
            raise HTTPException(HTTPStatus.FORBIDDEN, told)
        if request.method == "POST" and has_body(request) and not is_json(only(request, "content-type")):
            told = "send JSON, and say so: `content-type: application/json`"
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, told)

    async def _recognized(self, request: Request) -> Visitor:
        """Raises: HTTPException, SandboxError."""
        if "authorization" in request.headers:
            return await self._visitors.with_key(bearer(request))
        if self._is_ours(request):
            return await self._visitors.ourselves()
        what = "send an API key as `authorization: Bearer <key>`; `k8e sandbox-apikey create <name>` makes one"
        raise HTTPException(HTTPStatus.UNAUTHORIZED, f"unknown caller: {what}", CHALLENGE)

    def _is_ours(self, request: Request) -> bool:
        if self._requires_key or any(name in request.headers for name in FORWARDED):
            return False
        source, target = request.scope.get("client"), request.scope.get("server")
        if not source or not target or not (is_loopback(source[0]) and is_loopback(target[0])):
            return False
        # SAFETY: both ends are those of the accepted socket, so the answer is about this connection and no other.
        found = self._sockets.uid_of(source=(source[0], source[1]), target=(target[0], target[1]))
        return found is not None and found == self._uid


def only(request: Request, name: str) -> str | None:
    """A header's value; of two nobody can say which was meant, and then it is one that nobody believes."""
    found = request.headers.getlist(name)
    return ", ".join(found) if found else None


def has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or only(request, "content-length") not in {None, "0"}


def bearer(request: Request) -> str:
    """The key in the header. Raises: HTTPException when it holds something else."""
    scheme, _, text = (only(request, "authorization") or "").partition(" ")
    key = text.strip()
    if scheme.lower() != "bearer" or not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "authorization: must be `Bearer <key>`", CHALLENGE)
    return key


def refusal(error: SandboxError) -> HTTPException:
    """What the server's answer about a caller means to the caller."""
    if isinstance(error, Denied | InvalidRequest):
        return HTTPException(HTTPStatus.UNAUTHORIZED, str(error), CHALLENGE)
    if isinstance(error, Exhausted):
        return HTTPException(HTTPStatus.TOO_MANY_REQUESTS, str(error))
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
