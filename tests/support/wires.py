"""Probes of a router from inside a sandbox's namespace, with all the powers of the host's root: sockets and frames.

`Wire` has two of our slots on a namespace that is either our router or, as the control of every denial, a plain one that
routes, answers and believes everything.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from k8e.egress import links, netns
from k8e.egress.links import Slot
from k8e.egress.router import Listeners, Router
from k8e.egress.ruleset import GATEWAY

__all__ = ["Wire", "arrives", "checksum", "guarded", "ipv4", "ipv6_udp", "plain", "udp", "until_up"]

T = TypeVar("T")

_SILENCE_S = 0.4
"""How long nothing must arrive to count as dropped; the control shows what arrives takes far less."""
_PATIENCE_S = 30.0
_PAUSE_S = 0.01


@dataclass(slots=True)
class Wire:
    """A sandbox under attack, its neighbour, and where their links end."""

    hub: int
    slot: Slot
    neighbour: Slot
    listeners: Listeners | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def at_hub(self, work: Callable[[], T]) -> T:
        return netns.inside(self.hub, work)

    def within(self, work: Callable[[], T]) -> T:
        return netns.inside(self.slot.namespace, work)

    def ip(self, *words: str, at: int | None = None) -> str:
        """The `ip` command inside the attacker's namespace, or another."""
        where = self.slot.namespace if at is None else at
        argv = ["ip", *words]
        done = netns.inside(where, lambda: subprocess.run(argv, capture_output=True, text=True, check=True))
        return done.stdout

    def open(self, family: int, kind: int, protocol: int = 0, *, at: int | None = None) -> socket.socket:
        """Closed with the wire."""
        where = self.slot.namespace if at is None else at
        made = netns.inside(where, lambda: socket.socket(family, kind, protocol))
        self.stack.callback(made.close)
        made.settimeout(_SILENCE_S)
        return made

    def frames(self) -> tuple[socket.socket, bytes]:
        """A raw socket on the attacker's interface, and its own hardware address."""
        raw = self.open(socket.AF_PACKET, socket.SOCK_RAW)
        self.within(lambda: raw.bind(("eth0", 0)))
        return raw, raw.getsockname()[4]

    def hub_mac(self) -> bytes:
        name = f"v{self.slot.index}"
        return self.at_hub(lambda: bytes.fromhex(_mac(name)))

    def send(self, packet: bytes, *, ethertype: int = 0x0800, to: bytes | None = None) -> None:
        """A frame, written by hand."""
        raw, own = self.frames()
        raw.send((to or self.hub_mac()) + own + struct.pack("!H", ethertype) + packet)


def _mac(name: str) -> str:
    listing = subprocess.run(["ip", "-o", "link", "show", name], capture_output=True, text=True, check=True).stdout
    return listing.split("link/ether ")[1].split()[0].replace(":", "")


@contextmanager
def guarded(directory: Path) -> Iterator[Wire]:
    """Two slots on the real router, with somebody listening."""
    router = Router.open(directory / "router")
    with ExitStack() as stack:
        stack.callback(router.remove)
        listeners = router.listen()
        stack.callback(listeners.close)
        hub = netns.open_held(directory / "router")
        yield from _wired(hub, stack, listeners)


@contextmanager
def plain() -> Iterator[Wire]:
    """The same two slots on a namespace without any rule."""
    settings = {"ipv4/ip_forward": 1, "ipv6/conf/all/disable_ipv6": 0, "ipv6/conf/default/disable_ipv6": 0}
    settings |= {f"ipv4/conf/{which}/rp_filter": 0 for which in ("all", "default")}

    def furnish() -> None:
        links.set_kernel(settings)
        links.ip_batch(f"link set lo up\naddress add {GATEWAY}/32 dev lo\n")

    with ExitStack() as stack:
        yield from _wired(netns.make(furnish), stack, None)


def _wired(hub: int, stack: ExitStack, listeners: Listeners | None) -> Iterator[Wire]:
    stack.callback(os.close, hub)
    slots = []
    for index in (5, 6):
        slots.append(links.make(index, hub))
        stack.callback(slots[-1].close)
        until_up(slots[-1])
    with ExitStack() as sockets:
        yield Wire(hub=hub, slot=slots[0], neighbour=slots[1], listeners=listeners, stack=sockets)


def until_up(slot: Slot) -> None:
    """The kernel opens the end that was set up first a moment after the other; what is sent before that is dropped."""
    argv = ["ip", "-o", "link", "show", "eth0"]
    deadline = time.monotonic() + _PATIENCE_S
    while " state UP " not in netns.inside(slot.namespace, lambda: subprocess.check_output(argv, text=True)):
        if time.monotonic() > deadline:
            raise TimeoutError("the link does not come up")
        time.sleep(_PAUSE_S)


def arrives(listener: socket.socket, *, expected: bool = False) -> bytes | None:
    """The next datagram, or None after a silence, which is long where one is expected: the machine may be busy."""
    listener.settimeout(_PATIENCE_S if expected else _SILENCE_S)
    try:
        return listener.recv(65536)
    except TimeoutError:
        return None


def checksum(data: bytes) -> int:
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(source: str, target: str, protocol: int, payload: bytes) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(payload),
        1,
        0,
        64,
        protocol,
        0,
        socket.inet_aton(source),
        socket.inet_aton(target),
    )
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(port: int, payload: bytes) -> bytes:
    """Without a checksum, which IPv4 allows."""
    return struct.pack("!HHHH", 40000, port, 8 + len(payload), 0) + payload


def ipv6_udp(source: str, target: str, port: int, payload: bytes) -> bytes:
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    body = udp(port, payload)
    summed = checksum(ends + struct.pack("!II", len(body), 17) + body)
    return struct.pack("!IHBB", 6 << 28, len(body), 17, 64) + ends + body[:6] + struct.pack("!H", summed) + body[8:]
