"""HTTP/1 on port 80, taken apart and put together again: every request is for the name that its address stands for.

Both sides are h11, so what one side meant by its framing is what the other side gets, written anew: a request that two
readers could see differently does not come out as it went in. After a 101 the bytes are no longer looked at; only
WebSockets may ask for that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h11

from k8e.egress.desk import Dial
from k8e.egress.sockets import is_quiet
from k8e.egress.turns import Turns, Worker
from k8e.egress.watch import Watch
from k8e.policy.names import BadName, canonical

__all__ = ["LIMIT", "NotHttp", "Refused", "Terms", "basic_credentials", "judge", "looks_like_http", "serve"]

LIMIT = 64 * 1024
"""Bytes of a request's or response's head."""

_PIECE = 128 * 1024
_HEAD_S = 10.0
_IDLE_S = 300.0
_FIRST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} [^\r\n]* HTTP/[0-9]\.[0-9]\r?\n")
_LONGEST_LINE = 8192
_TEXT = re.compile(rb"[\t\r\n\x20-\x7e]*")

_MISPLACED = "a secret's placeholder, sent where the secret is not for"

_Headers = list[tuple[bytes, bytes]]


class Refused(Exception):
    """A request that must not go out. `name` is the host that it is for, where it says so."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name


class NotHttp(Refused):
    """What came is no HTTP/1 request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every request on a connection must keep to."""

    name: str
    port: int
    unspeakable: tuple[bytes, ...] = ()
    """Placeholders of secrets, which must not go out in the open."""


def looks_like_http(data: bytes) -> bool | None:
    """Whether these first bytes are a request's; None while they may become one."""
    line, end, _ = data.partition(b"\n")
    if end:
        return _FIRST_LINE.match(line + end) is not None
    if len(data) >= _LONGEST_LINE or not _TEXT.fullmatch(data):
        return False
    return None


def judge(request: h11.Request, terms: Terms) -> h11.Request:
    """The request as it may go out.

    Raises:
        Refused: it may not.
    """
    if request.http_version not in {b"1.0", b"1.1"}:
        raise NotHttp("not HTTP/1")  # h11 reads other versions' first lines too
    if request.method == b"CONNECT":
        raise Refused("CONNECT asks for a proxy, which this is not")
    headers = list(request.headers.raw_items())
    if len(request.target) + sum(len(name) + len(value) for name, value in headers) > LIMIT:
        raise NotHttp("a request whose head is too long")  # h11 only minds those that come bit by bit
    names = {name.lower() for name, _ in headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refused("a request with two lengths")
    target = _judge_target(request.target, terms)
    headers = [(name, _judge_host(value, terms) if name.lower() == b"host" else value) for name, value in headers]
    if any(secret in text for secret in terms.unspeakable for text in (target, *_said(headers))):
        raise Refused(_MISPLACED, terms.name)
    if b"host" not in names:
        headers.insert(0, (b"Host", terms.name.encode("ascii")))
    return h11.Request(method=request.method, target=target, headers=_without_other_protocols(headers))


def _said(headers: _Headers) -> Iterator[bytes]:
    """Values, and also what Basic credentials say behind their encoding."""
    for _, value in headers:
        yield value
        if (credentials := basic_credentials(value)) is not None:
            yield credentials


def basic_credentials(value: bytes) -> bytes | None:
    """What an Authorization of the kind Basic says behind its encoding; None for anything else."""
    scheme, _, token = value.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        return base64.b64decode(token.strip(), validate=True)
    except binascii.Error:
        return None


def _judge_target(target: bytes, terms: Terms) -> bytes:
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() != b"http":
        raise Refused("a target that is neither a path nor an http address")
    host, slash, path = rest.partition(b"/")
    if b"?" in host or b"#" in host:
        raise Refused("an address whose host cannot be told from its query")
    _judge_host(host, terms)
    return slash + path if slash else b"/"


def _judge_host(value: bytes, terms: Terms) -> bytes:
    """The same host as we write it: nobody after us reads anything else into it."""
    text = value.decode("latin-1")
    host, colon, port = text.partition(":")
    try:
        name = canonical(host)
    except BadName as error:
        raise Refused(f"Host is no host name: {error.reason}", text[:253]) from error
    if name != terms.name:
        raise Refused(f"Host says {name}, but the address is that of {terms.name}", name)
    if colon and port != str(terms.port):
        raise Refused(f"Host says port {port[:8]}, but the connection is to {terms.port}", name)
    return f"{name}{colon}{port}".encode("ascii")


def _without_other_protocols(headers: _Headers) -> _Headers:
    """Without an invitation to anything but WebSockets: in HTTP/2, further hosts would go unseen."""
    offers = [value.strip().lower() for name, value in headers if name.lower() == b"upgrade"]
    if all(offer == b"websocket" for offer in offers):
        return headers
    return [(name, value) for name, value in headers if name.lower() not in {b"upgrade", b"http2-settings"}]


async def serve(client: socket.socket, first: bytes, terms: Terms, dial: Dial, turns: Turns) -> None:
    """Carry requests and responses until one side has had enough.

    Closes what it dials, not `client`.

    Raises:
        Refused: a request broke the terms; nothing of it went out.
        OSError, TimeoutError: a side broke off or was too slow.
    """
    session = _Session(client, first, terms, dial, Worker(turns))
    try:
        await session.run()
    finally:
        session.close()


class _Session:
    def __init__(self, client: socket.socket, first: bytes, terms: Terms, dial: Dial, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._terms = terms
        self._dial = dial
        self._near = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMIT)
        if first:
            self._near.receive_data(first)
        self._far = h11.Connection(h11.CLIENT, max_incomplete_event_size=LIMIT)
        self._upstream: socket.socket | None = None
        self._is_bodiless = True

    def close(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    async def run(self) -> None:
        while (request := await self._request()) is not None:
            outgoing = judge(request, self._terms)
            self._is_bodiless = _is_bodiless(request)
            upstream = await self._connected()
            await self._write(upstream, self._far.send(outgoing))
            if await self._exchange(upstream, request.http_version):
                await self._carry_raw(upstream)
                return
            if not self._begin_next():
                return

    async def _request(self) -> h11.Request | None:
        """The next one; None at the end. Raises: NotHttp, TimeoutError."""
        if not self._near.trailing_data[0] and not await self._receive():
            return None
        async with asyncio.timeout(_HEAD_S):
            event = await self._near_event(NotHttp)
        return event if isinstance(event, h11.Request) else None

    async def _receive(self) -> bool:
        """Wait for the beginning of a further request; False when none comes."""
        try:
            async with asyncio.timeout(_IDLE_S):
                data = await self._loop.sock_recv(self._client, _PIECE)
        except TimeoutError:
            return False
        if data:
            self._near.receive_data(data)
        return bool(data)

    async def _near_event(self, on_error: Callable[[str], Exception]) -> object:
        while True:
            await self._worker.breathe()
            try:
                event = self._near.next_event()
            except h11.RemoteProtocolError as error:
                raise on_error(f"not HTTP/1: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            self._near.receive_data(await self._loop.sock_recv(self._client, _PIECE))

    async def _far_event(self, upstream: socket.socket) -> object:
        while True:
            await self._worker.breathe()
            try:
                event = self._far.next_event()
            except h11.RemoteProtocolError as error:
                raise ConnectionAbortedError(f"the host does not speak HTTP/1: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            self._far.receive_data(await self._loop.sock_recv(upstream, _PIECE))

    async def _connected(self) -> socket.socket:
        """The connection for the next request: the last one's, unless its server has closed it meanwhile."""
        if self._upstream is not None and self._far.our_state is h11.IDLE and is_quiet(self._upstream):
            return self._upstream
        self.close()
        self._far = h11.Connection(h11.CLIENT, max_incomplete_event_size=LIMIT)
        self._upstream = await self._dial()
        return self._upstream

    async def _exchange(self, upstream: socket.socket, version: bytes) -> bool:
        """One request's body up and its response down, both at once; whether the protocol was switched."""
        if self._is_bodiless:
            # Most are. A quick answer may be there before a task would have run at all.
            await self._send_body(upstream)
            return await self._relay_response(upstream, version)
        with _one_error():
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_body(upstream), name="http body")
                switched = await self._relay_response(upstream, version)
                # The response is complete: whatever is left of the request is for nobody.
                sending.cancel()
        return switched

    async def _send_body(self, upstream: socket.socket) -> None:
        watch = Watch(self._terms.unspeakable)
        while True:
            event = await self._near_event(ConnectionAbortedError)
            if not isinstance(event, h11.Data | h11.EndOfMessage):
                return
            if watch.sees(bytes(event.data) if isinstance(event, h11.Data) else _trailing(event)):
                raise Refused(_MISPLACED, self._terms.name)
            try:
                await self._write(upstream, self._far.send(event))
            except (OSError, h11.LocalProtocolError):
                return  # it may have answered before it closed: the response is still to be read
            if isinstance(event, h11.EndOfMessage):
                return

    async def _relay_response(self, upstream: socket.socket, version: bytes) -> bool:
        is_chunked = False
        while True:
            event = await self._far_event(upstream)
            match event:
                case h11.InformationalResponse(status_code=101):
                    await self._write(self._client, self._near_send(event))
                    return True
                case h11.InformationalResponse():
                    if version >= b"1.1":
                        await self._write(self._client, self._near_send(event))
                case h11.Response():
                    is_chunked = version >= b"1.1" and any(name == b"transfer-encoding" for name, _ in event.headers)
                    await self._write(self._client, self._near_send(_as_our_own(event)))
                case h11.Data():
                    await self._write(self._client, self._near_send(event))
                case h11.EndOfMessage():
                    end = event if is_chunked else h11.EndOfMessage()
                    await self._write(self._client, self._near_send(end))
                    return False
                case _:
                    raise ConnectionAbortedError("the host closed the connection without a response")

    def _near_send(self, event: h11.Event) -> bytes:
        try:
            return self._near.send(event) or b""
        except h11.LocalProtocolError as error:
            raise ConnectionAbortedError(f"the host's response makes no sense here: {error}") from error

    async def _write(self, sock: socket.socket, data: bytes | None) -> None:
        if data:
            await self._loop.sock_sendall(sock, data)

    def _begin_next(self) -> bool:
        """Make ready for another request; False when this was the last."""
        if self._near.our_state is not h11.DONE or self._near.their_state is not h11.DONE:
            return False
        self._near.start_next_cycle()
        if self._far.our_state is h11.DONE and self._far.their_state is h11.DONE:
            self._far.start_next_cycle()
        else:
            self.close()
        return True

    async def _carry_raw(self, upstream: socket.socket) -> None:
        up, down = self._near.trailing_data[0], self._far.trailing_data[0]
        with _one_error():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(self._client, upstream, up), name="websocket up")
                tasks.create_task(self._copy(upstream, self._client, down), name="websocket down")

    async def _copy(self, source: socket.socket, sink: socket.socket, first: bytes) -> None:
        data = first or await self._loop.sock_recv(source, _PIECE)
        while data:
            await self._write(sink, data)
            await self._worker.breathe()
            data = await self._loop.sock_recv(source, _PIECE)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Both directions of a broken connection break; one error says it."""
    try:
        yield
    except BaseExceptionGroup as group:
        if (refused := group.subgroup(Refused)) is not None and isinstance(refused.exceptions[0], Refused):
            raise refused.exceptions[0] from group
        broken, other = group.split(OSError)
        if broken is None or other is not None:
            raise
        raise ConnectionAbortedError(str(broken.exceptions[0])) from group


def _as_our_own(response: h11.Response) -> h11.Response:
    """Of the version that this side speaks: a server may answer with HTTP/1.0, which h11 reads and does not write."""
    return h11.Response(status_code=response.status_code, headers=response.headers, reason=response.reason)


def _trailing(end: h11.EndOfMessage) -> bytes:
    return b"\n".join(value for _, value in end.headers)


def _is_bodiless(request: h11.Request) -> bool:
    return not any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value)) for name, value in request.headers
    )
