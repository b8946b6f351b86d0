"""Every TCP connection of every sandbox ends here: who is it, where to, may it, and then carry it.

The name comes from the address that the resolver gave this very sandbox; what the client says (SNI, Host) must agree.
A denial is told first and then felt: a reset, at once. Every connection is known until it ends, so that a change of policy
finds it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable

from k8e.egress import http, upstream
from k8e.egress.book import is_synthetic
from k8e.egress.desk import Broker, Desk, Dial, Member
from k8e.egress.guests import Connection, Guest, Guests
from k8e.egress.hello import Hello, HelloReader, Kind
from k8e.egress.pump import Pump
from k8e.egress.sockets import accepted, furnish, is_quiet, reset
from k8e.egress.upstream import Resolve, Unreachable
from k8e.model import Decision, Verdict
from k8e.policy.decide import Answer
from k8e.policy.names import BadName, canonical
from k8e.policy.targets import LocalRoute, refusal

__all__ = ["Proxy"]

_log = logging.getLogger(__name__)

_FIRST_BYTES_S = 10.0
_SILENCE_S = 1.0
"""After which, where any protocol may pass, the server is asked whether it speaks first."""
_PIECE = 16 * 1024
_TLS, _HTTP = 443, 80
_DESCRIPTORS_EACH = 8
"""The most that one connection can need: four sockets and two pipes."""


class Proxy:
    def __init__(
        self,
        desk: Desk,
        guests: Guests,
        tell: Callable[[Decision], None],
        route: LocalRoute,
        resolve: Resolve,
        broker: Broker,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._desk = desk
        self._guests = guests
        self._tell = tell
        self._route = route
        self._resolve = resolve
        self._broker = broker
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._pump = Pump()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_EACH

    # --- from outside ---

    def accept(self, listener: socket.socket) -> None:
        """Take what has arrived at a listening socket, a batch of it."""
        for client, peer in accepted(listener, lambda: self.accept(listener)):
            self._welcome(client, peer)

    def policy_changed(self, member: Member) -> None:
        """Cut what is no longer allowed, before returning."""
        guest = self._guests.known(member)
        if guest is None:
            return
        guest.take(member)
        for connection in list(guest.connections):
            if why := self._grounds_to_cut(connection):
                self._tell_of(connection, Verdict.DENIED, reason=why)
                self._cut(connection)

    def gone(self, member: Member) -> None:
        """Cut everything of a sandbox."""
        guest = self._guests.known(member)
        if guest is not None:
            for connection in list(guest.connections):
                self._cut(connection)
            self._guests.forget(member)

    def close(self) -> None:
        self._pump.close()

    # --- one connection ---

    def _welcome(self, client: socket.socket, peer: str) -> None:
        member = self._desk.member(peer)
        if member is None:
            reset(client)
            return
        target, port = client.getsockname()[:2]
        guest = self._guests.of(member)
        connection = Connection(guest, client, target, port)
        if why := self._no_room_for(guest):
            self._deny(connection, why)
            reset(client)
            return
        furnish(client, is_modest=guest.is_modest)
        guest.connections.add(connection)
        connection.task = self._tasks.create_task(self._serve(connection), name=f"connection of {member.sandbox}")
        connection.task.add_done_callback(lambda _: self._task_done(connection))

    def _no_room_for(self, guest: Guest) -> str:
        if guest.is_full:
            return f"more than {guest.policy.connections} connections at once"
        # Descriptors are everybody's: when they run short, those who have many get no more.
        if guest.is_modest and self._guests.connections >= self._most:
            return "too many connections on this machine"
        return ""

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._look_and_carry(connection)
        except http.Refused as error:
            self._deny(connection, error.reason, name=error.name)
            self._cut_pair(connection)
        except Unreachable as error:
            self._deny(connection, str(error))
            self._cut_pair(connection)
        except TimeoutError:
            self._deny(connection, "the client was too slow to say what it wants")
            self._cut_pair(connection)
        except OSError as error:
            # Either end broke off: its own affair.
            _log.debug("connection ended", extra={"error": str(error)})
            self._cut_pair(connection)
        except Exception:  # noqa: BLE001 - an edge: one connection's bug must not end the others
            _log.exception("connection failed", extra={"sandbox": connection.guest.member.sandbox})
            self._cut_pair(connection)

    async def _look_and_carry(self, connection: Connection) -> None:
        self._name(connection)
        answer = connection.answer()
        if not answer.allowed:
            raise http.Refused(answer.reason)
        connection.rule = answer.rule
        if not connection.name or connection.port not in {_TLS, _HTTP}:
            self._join(connection, await self._dial(connection), b"")
            return
        anything_goes = connection.may_be_anything = _may_be_anything(answer)
        first, early = await self._first_bytes(connection) if not anything_goes else await self._first_word(connection)
        if early is not None and not first:
            self._join(connection, early, b"")  # the server spoke first: neither TLS nor HTTP
            return
        dial = _Dialled(early, lambda: self._dial(connection))
        try:
            look = self._carry_tls if connection.port == _TLS else self._carry_http
            await look(connection, first, dial, anything_goes)
        finally:
            dial.close()

    def _name(self, connection: Connection) -> None:
        if not is_synthetic(connection.target):
            connection.address = connection.target
            return
        name = connection.guest.member.book.name(connection.target)
        if name is None:
            connection.address = connection.target
            raise http.Refused("an address that stands for no name of this sandbox")
        connection.name = name

    async def _first_bytes(self, connection: Connection) -> tuple[bytes, socket.socket | None]:
        async with asyncio.timeout(_FIRST_BYTES_S):
            first = await self._loop.sock_recv(connection.client, _PIECE)
        if not first:
            raise ConnectionAbortedError("the client closed without a word")
        return first, None

    async def _first_word(self, connection: Connection) -> tuple[bytes, socket.socket | None]:
        """Where any protocol may pass: the client's first bytes, or a server's that speaks before the client does."""
        if await self._one_speaks(connection.client, timeout_s=_SILENCE_S):
            return await self._first_bytes(connection)
        early = await self._dial(connection)
        try:
            await self._one_speaks(connection.client, early, timeout_s=None)
            if not is_quiet(connection.client):
                first, _ = await self._first_bytes(connection)
                return first, early
        except BaseException:
            early.close()
            raise
        return b"", early

    async def _one_speaks(self, *socks: socket.socket, timeout_s: float | None) -> bool:
        """Wait until one of them can be read; False when none could in time."""
        spoken = asyncio.Event()
        for sock in socks:
            self._loop.add_reader(sock, spoken.set)
        try:
            async with asyncio.timeout(timeout_s):
                await spoken.wait()
        except TimeoutError:
            return False
        finally:
            for sock in socks:
                self._loop.remove_reader(sock)
        return True

    # --- what may be looked at ---

    async def _carry_tls(self, connection: Connection, first: bytes, dial: _Dialled, anything_goes: bool) -> None:
        hello, taken = await self._hello(connection, first)
        has_grant = any(grant.host == connection.name for grant in connection.guest.member.grants)
        if hello.kind is Kind.OTHER and anything_goes and not has_grant:
            self._join(connection, await dial(), taken)
            return
        if hello.kind is not Kind.TLS:
            raise http.Refused(
                "port 443 is for TLS, and this is not" if hello.kind is Kind.OTHER else "no proper ClientHello"
            )
        connection.protocol = "tls"
        _check_sni(hello, connection.name)
        if has_grant:
            inner = self._join_inner(connection)
            try:
                await self._broker(inner, taken, connection.name, connection.guest.member, dial, self._desk)
            finally:
                inner.close()
        else:
            self._join(connection, await dial(), taken)

    async def _hello(self, connection: Connection, first: bytes) -> tuple[Hello, bytes]:
        reader = HelloReader()
        hello = reader.feed(first)
        async with asyncio.timeout(_FIRST_BYTES_S):
            while hello is None:
                hello = reader.feed(await self._loop.sock_recv(connection.client, _PIECE))
        return hello, bytes(reader.taken)

    async def _carry_http(self, connection: Connection, first: bytes, dial: _Dialled, anything_goes: bool) -> None:
        if anything_goes:
            is_http, first = await self._is_http(connection, first)
            if not is_http:
                self._join(connection, await dial(), first)
                return
        connection.protocol = "http"
        secrets = tuple(grant.placeholder.encode() for grant in connection.guest.member.grants)
        terms = http.Terms(name=connection.name, port=connection.port, unspeakable=secrets)
        inner = self._join_inner(connection)
        try:
            await http.serve(inner, first, terms, dial, connection.guest.turns)
        finally:
            inner.close()

    async def _is_http(self, connection: Connection, first: bytes) -> tuple[bool, bytes]:
        taken = bytearray(first)
        async with asyncio.timeout(_FIRST_BYTES_S):
            while (verdict := http.looks_like_http(bytes(taken))) is None:
                more = await self._loop.sock_recv(connection.client, _PIECE)
                if not more:
                    return False, bytes(taken)
                taken += more
        return verdict, bytes(taken)

    # --- out and back ---

    async def _dial(self, connection: Connection) -> socket.socket:
        """A judged connection to where this one is for. Raises: Unreachable."""
        if connection.name:
            addresses = await connection.guest.lookups.find(connection.name, self._resolve, self._tasks)
        else:
            addresses = (connection.target,)
        is_modest = connection.guest.is_modest
        sock, address = await upstream.connect(
            addresses, connection.port, lambda address: self._refusal(connection, address), is_modest=is_modest
        )
        if why := self._refusal(connection, address):
            sock.close()  # the policy has changed while we dialled
            raise Unreachable(f"it leads to {why}")
        connection.address = address
        if not connection.is_told:
            connection.is_told = True
            self._tell_of(connection, Verdict.ALLOWED)
        return sock

    def _refusal(self, connection: Connection, address: str) -> str:
        answer = connection.answer()
        if not answer.allowed:
            return f"what is no longer allowed ({answer.reason})"
        return refusal(
            address,
            route=self._route,
            policy=connection.guest.policy,
            may_be_private=answer.may_be_private,
            port=connection.port,
        )

    def _join(self, connection: Connection, sock: socket.socket, head: bytes) -> None:
        connection.pair = self._pump.join(
            connection.guest.lane, connection.client, sock, head=head, ended=lambda: self._pair_ended(connection)
        )

    def _join_inner(self, connection: Connection) -> socket.socket:
        """Our end of a connection that is spoken for here: its bytes too go in turns, are counted and can be cut."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._join(connection, theirs, b"")
        return ours

    # --- ends ---

    def _grounds_to_cut(self, connection: Connection) -> str:
        if not connection.name and is_synthetic(connection.target):
            return ""  # not looked at yet; it will meet the new policy
        answer = connection.answer()
        if not answer.allowed:
            return answer.reason
        if connection.may_be_anything and connection.protocol == "tcp" and not _may_be_anything(answer):
            return f"port {connection.port} is no longer for any protocol"
        return self._refusal(connection, connection.address) if connection.is_told else ""

    def _cut(self, connection: Connection) -> None:
        self._cut_pair(connection)
        if connection.task is not None:
            connection.task.cancel()

    def _cut_pair(self, connection: Connection) -> None:
        if connection.pair is not None:
            self._pump.cut(connection.pair)

    def _pair_ended(self, connection: Connection) -> None:
        if connection.task is None:
            self._over(connection)
        else:
            connection.task.cancel()  # nobody is left to be spoken for

    def _task_done(self, connection: Connection) -> None:
        connection.task = None
        if connection.pair is None:
            reset(connection.client)
            self._over(connection)
        elif connection.pair.is_closed:
            self._over(connection)

    def _over(self, connection: Connection) -> None:
        connection.guest.connections.discard(connection)
        if connection.is_told:
            pair = connection.pair
            self._tell_of(
                connection,
                Verdict.CLOSED,
                sent=pair.sent if pair is not None else 0,
                received=pair.received if pair is not None else 0,
            )

    # --- telling ---

    def _deny(self, connection: Connection, reason: str, *, name: str = "") -> None:
        self._tell_of(connection, Verdict.DENIED, reason=reason, name=name)

    def _tell_of(
        self,
        connection: Connection,
        verdict: Verdict,
        *,
        reason: str = "",
        name: str = "",
        sent: int = 0,
        received: int = 0,
    ) -> None:
        decision = Decision(
            at=time.time(),
            sandbox=connection.guest.member.sandbox,
            verdict=verdict,
            protocol=connection.protocol,
            name=name or connection.name,
            address=connection.address or connection.target,
            port=connection.port,
            rule=connection.rule,
            reason=reason,
            bytes_sent=sent,
            bytes_received=received,
        )
        self._tell(decision)


class _Dialled:
    """Dials; the first time it may have been done already."""

    def __init__(self, early: socket.socket | None, dial: Dial) -> None:
        self._early = early
        self._dial = dial

    async def __call__(self) -> socket.socket:
        if self._early is not None:
            early, self._early = self._early, None
            return early
        return await self._dial()

    def close(self) -> None:
        if self._early is not None:
            self._early.close()
            self._early = None


def _may_be_anything(answer: Answer) -> bool:
    return answer.port_named or answer.rule == "open"


def _check_sni(hello: Hello, name: str) -> None:
    """Raises: http.Refused."""
    if hello.name is None:
        return
    try:
        asked = canonical(hello.name)
    except BadName as error:
        raise http.Refused(f"the name in the ClientHello is none: {error.reason}", hello.name[:253]) from error
    if asked != name:
        raise http.Refused(f"the ClientHello is for {asked}, but the address is that of {name}", asked)
