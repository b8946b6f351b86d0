"""Calls through the unix socket: the Connect protocol in JSON over HTTP/1.1, one connection per call.

A connection costs less than a tenth of a millisecond here, and its end tells the server that the call is over: a
command that goes away by Ctrl-C or by a kill takes along what it started. Only connecting is ever tried again.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from k8e.client.errors import DeadlineExceeded, SandboxError, ServerFailed
from k8e.client.light.calls import QUICK_S, Answer, Duplex, Request, given, refusal, unreachable
from k8e.client.light.http import Exchange, LostConnectionError, envelope
from k8e.client.light.refusals import ended, parsed, refused

__all__ = ["CONNECT_S", "END_OF_STREAM", "PATIENCE_S", "SERVICE", "STEP_S", "UnixCalls", "connected"]

SERVICE = "/sandbox.v1.SandboxService/"
CONNECT_S = 10.0
STEP_S = 0.01
PATIENCE_S = 5.0
"""How long after a call's own deadline the server may take to say that it has passed."""
END_OF_STREAM = 2
ADDRESS_BYTES = 107


class UnixCalls:
    def __init__(self, path: str, headers: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._headers = dict(headers or {})

    def unary(self, rpc: str, request: Request, *, timeout_s: float | None = QUICK_S) -> Answer:
        with self._exchange(timeout_s) as exchange:
            try:
                exchange.send_head(SERVICE + rpc, self._head("application/json", timeout_s), _json(request))
                status, headers = exchange.receive_head()
                body = exchange.receive_all()
            except (OSError, LostConnectionError) as error:
                raise self._lost(error) from error
        if status != 200:
            raise refusal(*refused(status, headers, body))
        return Answer(_object(body))

    def stream(
        self, rpc: str, requests: Sequence[Request] | Iterator[Request], *, timeout_s: float | None = None
    ) -> Iterator[Answer]:
        head = self._head("application/connect+json", timeout_s)
        with self._exchange(timeout_s) as exchange:
            try:
                if isinstance(requests, Sequence):
                    exchange.send_head(SERVICE + rpc, head, b"".join(envelope(_json(each)) for each in requests))
                else:
                    exchange.send_head(SERVICE + rpc, head, None)
                    exchange.send_pieces(envelope(_json(each)) for each in given(requests))
                status, headers = exchange.receive_head()
                if status != 200:
                    raise refusal(*refused(status, headers, exchange.receive_all()))
                yield from _answers(exchange)
            except (OSError, LostConnectionError) as error:
                raise self._lost(error) from error

    def duplex(self, rpc: str) -> Duplex:
        exchange = self._exchange(None)
        exchange.send_head(SERVICE + rpc, self._head("application/connect+json", None), None)
        return UnixDuplex(exchange, self._lost)

    def close(self) -> None:
        """Nothing is kept between two calls."""

    def _head(self, kind: str, timeout_s: float | None) -> dict[str, str]:
        limit = {} if timeout_s is None else {"connect-timeout-ms": str(int(timeout_s * 1000))}
        return {"content-type": kind, "connect-protocol-version": "1", **limit, **self._headers}

    def _exchange(self, timeout_s: float | None) -> Exchange:
        connection = self._connected()
        connection.settimeout(None if timeout_s is None else timeout_s + PATIENCE_S)
        return Exchange(connection)

    def _connected(self) -> socket.socket:
        """A server under load may have no room for another connection for a moment; nothing has been asked yet."""
        end = time.monotonic() + CONNECT_S
        while True:
            try:
                if connection := connected(self._path):
                    return connection
            except OSError as error:
                raise unreachable(self._path, str(error), was_sent=False) from error
            if time.monotonic() > end:
                raise unreachable(self._path, "it takes no more connections for now", was_sent=False)
            select.select([], [], [], STEP_S)

    def _lost(self, error: Exception) -> SandboxError:
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(f"no answer from {self._path} in time")
        return unreachable(self._path, str(error))


class UnixDuplex:
    """One thread sends, another one reads."""

    def __init__(self, exchange: Exchange, lost: Callable[[Exception], SandboxError]) -> None:
        self._exchange = exchange
        self._lost = lost

    def send(self, request: Request) -> None:
        try:
            self._exchange.send_piece(envelope(_json(request)))
        except OSError as error:
            raise self._lost(error) from error

    def finish(self) -> None:
        try:
            self._exchange.end_pieces()
        except OSError as error:
            raise self._lost(error) from error

    def answers(self) -> Iterator[Answer]:
        with self._exchange as exchange:
            try:
                status, headers = exchange.receive_head()
                if status != 200:
                    raise refusal(*refused(status, headers, exchange.receive_all()))
                yield from _answers(exchange)
            except (OSError, LostConnectionError) as error:
                raise self._lost(error) from error

    def cancel(self) -> None:
        self._exchange.hang_up()


def connected(path: str) -> socket.socket | None:
    """A connection that never blocks, or None while the server has no room for another. Raises: OSError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        _connect(connection, path)
    except BlockingIOError:
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        connection.connect(path)
        return
    # The kernel's address has no room for it; a name below an open directory is short.
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)  # noqa: PTH120 - pathlib is not loaded here
    try:
        connection.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")  # noqa: PTH119
    finally:
        os.close(directory)


def _json(request: Request) -> bytes:
    return json.dumps(request).encode("ascii")


def _object(body: bytes) -> dict[str, object]:
    found = parsed(body or b"{}")
    if found is None:
        raise ServerFailed(f"the server's answer is no JSON object: {body[:200]!r}")
    return found


def _answers(exchange: Exchange) -> Iterator[Answer]:
    for flags, body in exchange.receive_envelopes():
        if not flags & END_OF_STREAM:
            yield Answer(_object(body))
        elif (told := ended(body)) is not None:
            raise refusal(*told)
        else:
            return
    raise LostConnectionError("the stream ended before its end was told")
