"""Hosts on the other side of the network that speak HTTPS and remember what they were told."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
from dataclasses import dataclass, field

import h11

from k8e.egress.authority import Authority
from tests.support.upstreams import Upstream

__all__ = ["Told", "serve_http", "serve_https"]

_LONGEST_HEAD = 1 << 20


@dataclass(slots=True)
class Told:
    """Every request that arrived, in order."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def everything(self) -> str:
        return repr(self.requests)


def serve_https(far: Upstream, public: Authority, *names: str, port: int = 443) -> dict[str, Told]:
    """One listener that proves to be whichever of the names a client asks for."""
    told = {name: Told() for name in names}
    contexts = {name: public.context(name) for name in names}
    front = public.context(names[0])
    front.sni_callback = lambda tls, name, _: _choose(tls, contexts.get(name or ""))

    def converse(connection: socket.socket) -> None:
        with front.wrap_socket(connection, server_side=True) as tls:
            _serve(tls, told)

    far.listen(port, converse)
    return told


def serve_http(far: Upstream, *names: str, port: int = 80) -> dict[str, Told]:
    told = {name: Told() for name in names}
    far.listen(port, lambda connection: _serve(connection, told))
    return told


def _choose(tls: ssl.SSLObject | ssl.SSLSocket, context: ssl.SSLContext | None) -> int | None:
    if context is None:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    tls.context = context
    return None


def _serve(connection: socket.socket, told: dict[str, Told]) -> None:
    with contextlib.suppress(h11.RemoteProtocolError):  # cut off in the middle of a request
        _converse(connection, told)


def _converse(connection: socket.socket, told: dict[str, Told]) -> None:
    """Answers with the request's headers as JSON, packed where the client can read that."""
    # Patient with long heads: whoever thinks them too long must be somebody before us.
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(connection.recv(65536))
        elif isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            connection.sendall(_answer(http, head, body, told))
            if http.our_state is not h11.DONE:
                return
            http.start_next_cycle()
        else:
            return


def _answer(http: h11.Connection, head: h11.Request, body: bytes, told: dict[str, Told]) -> bytes:
    headers = {name.decode(): value.decode() for name, value in head.headers}
    told[headers["host"].partition(":")[0]].requests.append((head.target.decode(), headers, body))
    text = json.dumps({"headers": headers, "body": body.decode("utf-8", "replace")}).encode()
    packed = "gzip" in headers.get("accept-encoding", "")
    text = gzip.compress(text) if packed else text
    shown = [("Content-Length", str(len(text))), ("X-Echo", headers.get("authorization", "none"))]
    shown += [("Content-Encoding", "gzip")] if packed else []
    return b"".join(
        http.send(each) or b""
        for each in (h11.Response(status_code=200, headers=shown), h11.Data(data=text), h11.EndOfMessage())
    )
