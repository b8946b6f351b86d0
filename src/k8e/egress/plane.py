"""The data plane as a whole: resolver and proxy on sockets that somebody else has opened in the right place."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from k8e.egress import resolver
from k8e.egress.decisions import WINDOW_S, Collector
from k8e.egress.desk import Broker, Desk, Dial, Member
from k8e.egress.guests import Guest, Guests
from k8e.egress.http import Refused
from k8e.egress.proxy import Proxy
from k8e.egress.sockets import accepted, furnish, reset
from k8e.egress.upstream import Resolve, SystemResolver
from k8e.model import Decision, Verdict
from k8e.policy.decide import decide_name
from k8e.policy.names import BadName, canonical
from k8e.policy.targets import LocalRoute

__all__ = ["Plane"]

_log = logging.getLogger(__name__)

_DNS_STREAMS = 16
"""TCP connections to the resolver, per sandbox."""
_BATCH = 16
_LONGEST_NAME = 253


class Plane:
    def __init__(
        self,
        desk: Desk,
        route: LocalRoute,
        *,
        resolve: Resolve | None = None,
        broker: Broker | None = None,
    ) -> None:
        self._desk = desk
        self._route = route
        self._resolve = resolve
        self._broker = broker or _broker
        self._guests = Guests()
        self._collector = Collector(desk.tell)
        self._proxy: Proxy | None = None
        self._streams: dict[Guest, int] = {}

    async def serve(self, tcp: socket.socket, dns_udp: socket.socket, dns_tcp: socket.socket) -> None:
        """Serve until cancelled; then everything is cut and nothing is left. The sockets stay the caller's."""
        system = None if self._resolve is not None else SystemResolver()
        resolve = self._resolve or system
        assert resolve is not None  # noqa: S101 - one of the two
        try:
            async with asyncio.TaskGroup() as tasks:
                proxy = Proxy(self._desk, self._guests, self.tell, self._route, resolve, self._broker, tasks)
                self._proxy = proxy
                try:
                    with (
                        _reading(tcp, proxy.accept, tcp),
                        _reading(dns_udp, resolver.serve_datagrams, dns_udp, self._asker),
                        _reading(dns_tcp, self._accept_dns, dns_tcp, tasks),
                    ):
                        await asyncio.get_running_loop().create_future()
                finally:
                    self._proxy = None
                    proxy.close()
        finally:
            self._collector.flush()
            if system is not None:
                system.close()

    def policy_changed(self, member: Member) -> None:
        """Cut what is no longer allowed, before returning."""
        if self._proxy is not None:
            self._proxy.policy_changed(member)

    def gone(self, member: Member) -> None:
        """Cut everything of a sandbox and forget it."""
        if self._proxy is not None:
            self._proxy.gone(member)

    def tell(self, decision: Decision) -> None:
        """Pass on, equal ones together."""
        if self._collector.add(decision):
            asyncio.get_running_loop().call_later(WINDOW_S, self._collector.flush)

    # --- DNS ---

    def _asker(self, address: str) -> resolver.Ask | None:
        member = self._desk.member(address)
        if member is None:
            return None
        guest = self._guests.of(member)
        return (lambda name: self._ask(guest, name)) if guest.may_ask() else None

    def _ask(self, guest: Guest, asked: str) -> str | None:
        member = guest.member
        try:
            name = canonical(asked)
        except BadName as error:
            self._tell_dns(guest, asked[:_LONGEST_NAME], reason=error.reason)
            return None
        answer = decide_name(member.policy, name, None)
        if not answer.allowed:
            self._tell_dns(guest, name, rule=answer.rule, reason=answer.reason)
            return None
        address, is_new = member.book.address(name)
        if is_new:
            self._desk.remember(member)
        self._tell_dns(guest, name, address=address, rule=answer.rule)
        return address

    def _tell_dns(self, guest: Guest, name: str, *, address: str = "", rule: str = "", reason: str = "") -> None:
        self.tell(
            Decision(
                at=time.time(),
                sandbox=guest.member.sandbox,
                verdict=Verdict.DENIED if reason else Verdict.ALLOWED,
                protocol="dns",
                name=name,
                address=address,
                rule=rule,
                reason=reason,
            )
        )

    def _accept_dns(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        for client, peer in accepted(listener, lambda: self._accept_dns(listener, tasks)):
            member = self._desk.member(peer)
            guest = None if member is None else self._guests.of(member)
            if guest is None or self._streams.get(guest, 0) >= _DNS_STREAMS:
                reset(client)
                continue
            furnish(client, is_modest=True)
            self._streams[guest] = self._streams.get(guest, 0) + 1
            task = tasks.create_task(self._serve_dns(client, guest), name="dns stream")
            task.add_done_callback(partial(self._dns_done, client, guest))

    async def _serve_dns(self, client: socket.socket, guest: Guest) -> None:
        def ask(name: str) -> str | None:
            return self._ask(guest, name) if guest.may_ask() else None

        try:
            await resolver.serve_stream(client, ask)
        except (OSError, resolver.TooSlow) as error:
            _log.debug("dns stream ended", extra={"error": str(error)})
        except Exception:  # noqa: BLE001 - an edge: one stream's bug must not end the others
            _log.exception("dns stream failed", extra={"sandbox": guest.member.sandbox})

    def _dns_done(self, client: socket.socket, guest: Guest, _: asyncio.Task[None]) -> None:
        client.close()
        left = self._streams.pop(guest) - 1
        if left:
            self._streams[guest] = left


@contextmanager
def _reading(sock: socket.socket, on_ready: Callable[..., None], *args: object) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_reader(sock, on_ready, *args)
    try:
        yield
    finally:
        loop.remove_reader(sock)


async def _broker(
    client: socket.socket, first_bytes: bytes, name: str, member: Member, dial: Dial, desk: Desk
) -> tuple[int, int]:
    raise Refused("nobody here speaks for secrets", name)
