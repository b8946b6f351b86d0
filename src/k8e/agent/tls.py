"""Connections over TCP, where whoever dials proves itself by its certificate.

The agent takes the client's part of TLS although it was dialled: it needs no key of its own, only the certificate of the
authority that signs those who may dial it. This module alone imports `ssl`, which most sandboxes do not have.
"""

from __future__ import annotations

import socket
import ssl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence, Union

__all__ = ["TlsListener", "TlsSocket"]

_BACKLOG = 8
_MOST_AT_ONCE = 256 * 1024
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A dialer whose host is gone says nothing: found out within a minute, or its place would never be free again.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60000),
)


class TlsListener:
    """At `HOST:PORT`; for whom `authority` (a file) has signed a certificate with the name `dialer`, and nobody else.

    A dialer must also say that it means this `sandbox`: a hostile one may hand on the connection that it was given.
    """

    def __init__(self, address: str, authority: str, dialer: str, sandbox: str) -> None:
        """Raises: OSError."""
        self._sandbox = sandbox
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._dialer = dialer
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_verify_locations(authority)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.fileno = self._socket.fileno

    def listen(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(self._address)
        self._socket.listen(_BACKLOG)

    def accept(self) -> TlsSocket:
        """Raises: OSError."""
        return TlsSocket(self._socket.accept()[0], self._context, self._dialer)

    def knows(self, hello: Mapping[str, Any]) -> bool:
        """Nothing can be read of anybody who has not shown its certificate; what is left is whom it wants."""
        return hello.get("sandbox") == self._sandbox


class TlsSocket:
    """What a link needs of a socket, inside TLS. Nothing can be read before the peer's certificate was accepted."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """`name` must be in the certificate. Raises: OSError."""
        sock.setblocking(False)
        for level, option, value in _OPTIONS:
            sock.setsockopt(level, option, value)
        self._tls = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        self.fileno = self._tls.fileno
        self.close = self._tls.close
        self.pending = self._tls.pending
        self.setblocking = self._tls.setblocking
        try:
            self._tls.do_handshake()  # begins; reading does the rest
        except ssl.SSLWantReadError:
            pass

    def recv_into(self, buffer: memoryview) -> int:
        """Raises: BlockingIOError, OSError."""
        try:
            return self._tls.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def sendmsg(self, buffers: Sequence[Union[bytes, memoryview]]) -> int:
        """After BlockingIOError the same must be sent again: OpenSSL may have taken it. Raises: BlockingIOError, OSError."""
        data = b"".join(buffers)
        try:
            return self._tls.send(data[:_MOST_AT_ONCE])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
