"""Speaks for a sandbox to a host that one of its secrets is for.

TLS ends here with a certificate that only this sandbox trusts. Each request is read, its placeholder swapped in the
one header that it is for, and sent on over TLS that is verified as usual; what comes back is scrubbed of the value.
One connection outwards per connection of the sandbox, so whoever closes closes both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

import h11

from k8e.egress.authority import Authority
from k8e.egress.content_encoding import Decoder, UnknownEncoding
from k8e.egress.desk import Desk, Dial, Member
from k8e.egress.http import LIMIT, Refused
from k8e.egress.scrub import Masked, Scrubber, in_pieces
from k8e.egress.spellings import SecretPattern
from k8e.egress.swap import Swap
from k8e.egress.tls import TlsStream
from k8e.egress.turns import Turns, Worker
from k8e.egress.upstream import Unreachable
from k8e.model import Decision, Grant, SandboxId, Verdict

__all__ = ["Broker", "Trust"]

_log = logging.getLogger(__name__)

_PORT = 443
_HANDSHAKE_S = 20.0
_QUIET_S = 0.05
"""How long what may be the beginning of a value waits for its rest, whatever it is."""
_LINGER_S = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_BODILESS = {204, 304}


class Trust:
    """How hosts are verified: by what this machine trusts, and by the operator's own bundle where there is one."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        self._known: tuple[int, ssl.SSLContext] | None = None

    def __call__(self) -> ssl.SSLContext:
        """Read anew when the bundle has changed. Raises: OSError, when it cannot be read."""
        changed_at = self._bundle.stat().st_mtime_ns if self._bundle.exists() else 0
        if self._known is None or self._known[0] != changed_at:
            context = ssl.create_default_context()
            if changed_at:
                context.load_verify_locations(self._bundle)
            context.set_alpn_protocols(["http/1.1"])
            self._known = changed_at, context
        return self._known[1]


class Broker:
    """Called by the data plane for a connection to port 443 of a host that a grant names."""

    def __init__(self, authority: Callable[[Member], Authority], trust: Callable[[], ssl.SSLContext]) -> None:
        self._authority = authority
        self._trust = trust
        self._turns: WeakValueDictionary[SandboxId, Turns] = WeakValueDictionary()
        self._patterns = _Patterns()

    async def __call__(
        self, client: socket.socket, first_bytes: bytes, name: str, member: Member, dial: Dial, desk: Desk
    ) -> tuple[int, int]:
        """Serve until either side ends; bytes sent and received. Closes what it dials, not `client`.

        Raises: Unreachable, after the sandbox was told.
        """
        context = self._authority(member).context(name)
        near = TlsStream(client, context, server_side=True, first=first_bytes)
        turns = self._turns.setdefault(member.sandbox, Turns())
        connection = _Connection(near, name, member, desk, Worker(turns), self._patterns)
        try:
            await connection.run(dial, self._trust())
        except (OSError, h11.ProtocolError, TimeoutError) as error:
            _log.debug("a brokered connection broke off", extra={"host": name, "error": type(error).__name__})
        return near.bytes_in, near.bytes_out


class _Patterns:
    """What finds the values of each sandbox's grants, for as long as it has them: each takes a millisecond or two to make."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Member, dict[str, SecretPattern]] = WeakKeyDictionary()

    async def of(self, member: Member, grants: tuple[Grant, ...], worker: Worker) -> tuple[Masked, ...]:
        valued = [grant for grant in grants if grant.value]
        known = self._known.get(member, {})
        fresh: dict[str, SecretPattern] = {}
        for grant in valued:
            if grant.value not in fresh:
                fresh[grant.value] = known.get(grant.value) or SecretPattern(grant.value.encode())
                await worker.breathe()
        self._known[member] = fresh
        return tuple(Masked(fresh[grant.value], grant.placeholder.encode()) for grant in valued)


_Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class _Over(Exception):
    """Nothing more will be said on this connection."""


class _Connection:
    def __init__(
        self, near: TlsStream, name: str, member: Member, desk: Desk, worker: Worker, patterns: _Patterns
    ) -> None:
        self._worker = worker
        self._patterns = patterns
        self._near = near
        self._far: TlsStream | None = None
        self._name = name
        self._member = member
        self._desk = desk
        self._inside = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMIT)
        self._outside = h11.Connection(h11.CLIENT, max_incomplete_event_size=LIMIT)
        self._swap = Swap(name, (), ())
        """Of the request that is served; before the first one there is nothing to swap."""
        self._answered = asyncio.Event()
        self._is_switched = False
        self._wants_body = True

    async def run(self, dial: Dial, upstream: ssl.SSLContext) -> None:
        if not await self._greet():
            return
        with contextlib.suppress(_Over):
            request = await self._first_request()
            with contextlib.closing(await self._reach(dial)) as sock:
                self._far = await self._trusted(sock, upstream)
                await self._carry(request)
        await self._part()

    async def _part(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._near.finish()
                await self._near.hear_out(_LINGER_BYTES)

    async def _greet(self) -> bool:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._near.handshake()
        except ssl.SSLError as error:
            self._deny(f"the program does not trust this session's certificate ({_text(error)})", protocol="tls")
            return False
        return True

    async def _first_request(self) -> h11.Request:
        """Before anything is dialled: a request that must not go out reaches nobody."""
        event = await self._heard()
        if not isinstance(event, h11.Request):
            raise _Over
        return await self._judged(event)

    async def _reach(self, dial: Dial) -> socket.socket:
        try:
            return await dial()
        except Unreachable as error:
            await self._refuse(502, f"{self._name}: {error}")
            await self._part()
            raise

    async def _trusted(self, sock: socket.socket, upstream: ssl.SSLContext) -> TlsStream:
        far = TlsStream(sock, upstream, name=self._name)
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await far.handshake()
        except (OSError, TimeoutError) as error:
            reason = f"{self._name} did not prove to be itself ({_text(error)})"
            self._deny(reason, protocol="tls")
            await self._refuse(502, reason)
            raise _Over from error
        return far

    async def _carry(self, request: h11.Request) -> None:
        """Both directions until one of them is over; then neither goes on."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_until_over(self._outwards(request)), name=f"broker to {self._name}"),
                group.create_task(_until_over(self._inwards()), name=f"broker from {self._name}"),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    # --- from the sandbox to the host --------------------------------------------------------------------------------

    async def _outwards(self, request: h11.Request) -> None:
        while True:
            self._wants_body = request.method != b"HEAD"
            await self._send_out(request)
            await self._send_body()
            await self._answered.wait()
            self._answered.clear()
            if self._is_switched:
                return await self._stream_out()
            self._inside.start_next_cycle()
            self._outside.start_next_cycle()
            event = await self._heard()
            if not isinstance(event, h11.Request):
                raise _Over
            request = await self._judged(event)

    async def _judged(self, request: h11.Request) -> h11.Request:
        """With the grants of this moment: a secret may have been changed or taken away since the last request."""
        if self._swap.grants is not (grants := self._member.grants):
            self._swap = Swap(self._name, grants, await self._patterns.of(self._member, grants, self._worker))
        try:
            return self._swap.request(request)
        except Refused as refused:
            self._deny(refused.reason, protocol="http")
            await self._refuse(403, refused.reason)
            raise _Over from refused

    async def _send_body(self) -> None:
        watch = self._swap.elsewhere()
        while True:
            event = await self._heard()
            if isinstance(event, h11.Data):
                if watch.sees(bytes(event.data)):
                    self._deny("a secret's placeholder, in a body for a host that it is not for", protocol="http")
                    raise _Over
            elif isinstance(event, h11.EndOfMessage):
                self._check_trailers(event)
            else:
                raise _Over
            await self._send_out(event)
            if isinstance(event, h11.EndOfMessage):
                return

    def _check_trailers(self, event: h11.EndOfMessage) -> None:
        try:
            self._swap.trailers(list(event.headers.raw_items()))
        except Refused as refused:
            self._deny(refused.reason, protocol="http")
            raise _Over from refused

    async def _heard(self) -> _Event:
        while True:
            try:
                event = self._inside.next_event()
            except h11.RemoteProtocolError as error:
                self._deny("what came is not HTTP/1.1", protocol="http")
                await self._refuse(400, "this host is reached through HTTP/1.1 only")
                raise _Over from error
            if event is not h11.NEED_DATA:
                return event
            await self._worker.breathe()
            self._inside.receive_data(await self._near.read())

    async def _send_out(self, event: h11.Event) -> None:
        data = self._outside.send(event)
        if not data or self._far is None:
            return
        try:
            await self._far.write(data)
        except OSError:
            # It may have answered before it stopped listening; the other direction knows and then ends both.
            await asyncio.get_running_loop().create_future()

    async def _stream_out(self) -> None:
        """After a switch of protocols: frames from inside are masked, there is nothing to look for."""
        data, _ = self._inside.trailing_data
        data = data or await self._near.read()
        while data and self._far is not None:
            await self._far.write(data)
            await self._worker.breathe()
            data = await self._near.read()
        raise _Over

    # --- from the host to the sandbox --------------------------------------------------------------------------------

    async def _inwards(self) -> None:
        try:
            while not self._is_switched:
                event = await self._told()
                if isinstance(event, h11.InformationalResponse):
                    await self._inform(event)
                elif isinstance(event, h11.Response):
                    await self._answer(event)
                else:
                    raise _Over
            await self._stream_in()
        except UnknownEncoding as error:
            reason = f"{self._name} answered in an encoding that cannot be looked into ({error})"
            self._deny(reason, protocol="http")
            await self._refuse(502, reason)
            raise _Over from error

    async def _inform(self, event: h11.InformationalResponse) -> None:
        await self._send_in(self._swap.information(event))
        if event.status_code == 101:
            self._is_switched = True
            self._answered.set()

    async def _answer(self, response: h11.Response) -> None:
        has_body = self._wants_body and response.status_code not in _BODILESS
        answer = self._swap.response(response, has_body=has_body)
        await self._send_in(answer.head)
        async for piece in self._body(answer.decoder):
            await self._send_in(h11.Data(data=piece))
        await self._send_in(h11.EndOfMessage())
        if self._inside.our_state is h11.MUST_CLOSE or self._outside.their_state is not h11.DONE:
            raise _Over
        self._answered.set()

    async def _body(self, decoder: Decoder | None) -> AsyncIterator[bytes]:
        scrubber = self._swap.scrubber()
        while True:
            event = await self._told(scrubber)
            if not isinstance(event, h11.Data):
                break
            for large in decoder.feed(bytes(event.data)) if decoder else (bytes(event.data),):
                for piece in in_pieces(large):
                    await self._worker.breathe()
                    if clean := scrubber.feed(piece):
                        yield clean
        if decoder is not None and not decoder.is_complete():
            raise _Over  # cut off: the sandbox must not take it for the whole
        if rest := scrubber.release():
            yield rest

    async def _told(self, scrubber: Scrubber | None = None) -> _Event:
        """What the host says next; if that takes a moment, the sandbox gets what the scrubber holds."""
        while True:
            event = self._outside.next_event()
            if event is not h11.NEED_DATA:
                return event
            await self._worker.breathe()
            if scrubber is not None and await self._is_quiet(scrubber):
                await self._send_in(h11.Data(data=scrubber.release()))
            data = await self._far.read() if self._far is not None else b""
            if not data and self._outside.their_state in (h11.IDLE, h11.DONE):
                raise _Over
            self._outside.receive_data(data)

    async def _is_quiet(self, scrubber: Scrubber) -> bool:
        """Whether something is held back for longer than a value's rest would take to come."""
        return scrubber.is_holding and self._far is not None and not await self._far.has_more(_QUIET_S)

    async def _send_in(self, event: h11.Event) -> None:
        data = self._inside.send(event)
        if data:
            await self._near.write(data)

    async def _stream_in(self) -> None:
        """A server's frames are plain, and a stand-in has the value's length, so they stay frames."""
        scrubber: Scrubber = self._swap.scrubber()
        data, _ = self._outside.trailing_data
        while self._far is not None:
            for piece in in_pieces(data):
                if clean := scrubber.feed(piece):
                    await self._near.write(clean)
                await self._worker.breathe()
            if await self._is_quiet(scrubber):
                await self._near.write(scrubber.release())
            data = await self._far.read()
            if not data:
                break
        if rest := scrubber.release():
            await self._near.write(rest)
        raise _Over

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _deny(self, reason: str, *, protocol: str) -> None:
        self._desk.tell(
            Decision(
                at=time.time(),
                sandbox=self._member.sandbox,
                verdict=Verdict.DENIED,
                protocol=protocol,
                name=self._name,
                port=_PORT,
                reason=reason,
            )
        )

    async def _refuse(self, status: int, reason: str) -> None:
        """Say why, as far as a response can still be begun."""
        if self._inside.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"k8e: {reason}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(text))),
            ("Connection", "close"),
        ]
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            await self._send_in(h11.Response(status_code=status, headers=headers))
            await self._send_in(h11.Data(data=text))
            await self._send_in(h11.EndOfMessage())


async def _until_over(direction: Coroutine[None, None, None]) -> None:
    """One direction's end as a value: an exception would be the group's."""
    with contextlib.suppress(_Over, OSError, h11.ProtocolError):
        await direction


def _text(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").lower().replace("_", " ")
    return str(error) or type(error).__name__
