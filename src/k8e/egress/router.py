"""The router: the namespace in which every sandbox's link ends, and where the resolver and the proxy listen.

It appears under its name complete or not at all. A daemon that starts again finds it as it was, with nobody listening,
and replaces the ruleset in one transaction before it listens.
"""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from k8e.egress import links, netns
from k8e.egress.links import Slot
from k8e.egress.ruleset import GATEWAY, PROXY_PORT, routing, ruleset

__all__ = ["Listeners", "Router"]

_BACKLOG = 4096
_QUESTIONS_BYTES = 4 << 20
"""Of questions that wait: the rules let one sandbox ask more at once than a socket has room for by itself, and what the
others ask then would be dropped."""
_SO_RCVBUFFORCE = 33
_NFT_TIMEOUT_S = 30.0
_EVERY = {
    "forwarding": 0,
    # ARP from a foreign source would fill a table that all namespaces of the host share.
    "rp_filter": 1,
    "route_localnet": 0,
    "accept_local": 0,
    "accept_source_route": 0,
    "accept_redirects": 0,
    "send_redirects": 0,
    "proxy_arp": 0,
}
"""A new namespace takes these over from the host, whatever they are there."""
_SETTINGS = {
    "ipv4/ip_forward": 0,
    "ipv6/conf/all/disable_ipv6": 1,
    "ipv6/conf/default/disable_ipv6": 1,
    **{f"ipv4/conf/{which}/{name}": value for which in ("all", "default") for name, value in _EVERY.items()},
    "ipv4/icmp_echo_ignore_all": 1,
    "ipv4/tcp_syncookies": 1,
    "ipv4/tcp_max_syn_backlog": _BACKLOG,
    "core/somaxconn": _BACKLOG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Sockets of the router's namespace, whoever uses them."""

    tcp: socket.socket
    """Every TCP connection of every sandbox; a connection's own name is where it wanted to go."""
    dns_udp: socket.socket
    dns_tcp: socket.socket

    def close(self) -> None:
        for each in (self.tcp, self.dns_udp, self.dns_tcp):
            each.close()


class Router:
    """Blocking; safe from several threads."""

    def __init__(self, namespace: int, path: Path, *, is_new: bool) -> None:
        self._namespace = namespace
        self._path = path
        self.is_new = is_new
        """Nothing is linked to it: what is remembered of sandboxes is from before a reboot."""

    @classmethod
    def open(cls, path: Path) -> Router:
        """The one at `path`, or a new one, with the rules in force. Raises: OSError."""
        is_new = not netns.is_held(path)
        namespace = netns.make(_furnish) if is_new else netns.open_held(path)
        router = cls(namespace, path, is_new=is_new)
        try:
            netns.inside(namespace, _load_rules)
            if is_new:
                path.unlink(missing_ok=True)
                netns.hold(namespace, path)
        except BaseException:
            router.close()
            raise
        return router

    def listen(self) -> Listeners:
        """From here on connections are taken. Raises: OSError."""
        return netns.inside(self._namespace, _listen)

    def slot(self, index: int) -> Slot:
        """A new slot. Raises: OSError."""
        return links.make(index, self._namespace)

    def close(self) -> None:
        """Leave it as it is, for the next daemon."""
        os.close(self._namespace)

    def remove(self) -> None:
        netns.let_go(self._path)
        self.close()


def _furnish() -> None:
    links.set_kernel(_SETTINGS)
    links.ip_batch(routing())


def _load_rules() -> None:
    done = subprocess.run(
        ["nft", "-f", "-"], input=ruleset(), capture_output=True, text=True, timeout=_NFT_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise OSError(f"nft: {done.stderr.strip() or f'exit {done.returncode}'}")


def _listen() -> Listeners:
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # SAFETY: this socket takes connections to every address. Only what the rules have marked reaches it.
    tcp.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)
    tcp.bind(("127.0.0.1", PROXY_PORT))
    dns_udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dns_udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUESTIONS_BYTES)
    dns_udp.bind((GATEWAY, 53))
    dns_tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    dns_tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    dns_tcp.bind((GATEWAY, 53))
    for each in (tcp, dns_udp, dns_tcp):
        each.setblocking(False)
    for each in (tcp, dns_tcp):
        each.listen(_BACKLOG)
    return Listeners(tcp=tcp, dns_udp=dns_udp, dns_tcp=dns_tcp)
