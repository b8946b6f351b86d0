"""The router alone, attacked from inside a slot with all the powers that the host's root has there.

Every probe runs twice: against the router, where it must be dropped, and against a plain namespace, where it arrives.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k8e.egress import netns
from k8e.egress.links import set_kernel
from k8e.egress.router import Router
from k8e.egress.ruleset import (
    _CONNECTIONS_AT_ONCE,
    _CONNECTIONS_PER_S,
    _QUESTIONS_AT_ONCE,
    _QUESTIONS_PER_S,
    FIRST_INDEX,
    GATEWAY,
)
from k8e.egress.spares import Indices, Spares
from tests.support.eventually import eventually
from tests.support.wires import Wire, arrives, checksum, guarded, ipv4, ipv6_udp, plain, udp

_ELSEWHERE = "203.0.113.9"
_ICMP = 1
_GRE = 47
_FLOOD = 3000
_CUT = 0.7
"""Less than this of a flood must have been allowed to show anything: a machine may be held up in the middle of it."""
_STRAY = 10
"""Packets that a limit may let pass beyond what it says, by the grain of its clock."""
_TRIES = 8
_SILENCE_S = 0.4
_PATIENCE_S = 60.0


@pytest.fixture(params=["router", "control"])
def wire(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Wire]:
    with guarded(data_dir) if request.param == "router" else plain() as wire, wire.stack:
        yield wire


@pytest.fixture
def router(data_dir: Path) -> Iterator[Wire]:
    with guarded(data_dir) as wire, wire.stack:
        yield wire


def _is_open(wire: Wire) -> bool:
    return wire.listeners is None


def _udp_at(wire: Wire, where: int, port: int, family: int = socket.AF_INET) -> socket.socket:
    listener = wire.open(family, socket.SOCK_DGRAM, at=where)
    listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    return listener


def _accepts(listener: socket.socket, *, expected: bool = True) -> tuple[str, int, str] | None:
    """Where the next connection wanted to go, and from where it came; one that is not expected is not waited for long."""
    listener.settimeout(_PATIENCE_S if expected else _SILENCE_S)
    try:
        connection, peer = listener.accept()
    except TimeoutError:
        return None
    with connection:
        return (*connection.getsockname(), peer[0])


# --- what does get through ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [_ELSEWHERE, "10.0.0.1", "198.18.0.7", "100.64.0.6", "169.254.169.254", GATEWAY])
@pytest.mark.parametrize("port", [22, 80, 443, 15001])
def test_every_connection_ends_at_the_proxy_which_knows_where_it_wanted_to_go(
    router: Wire, target: str, port: int
) -> None:
    assert router.listeners is not None
    with router.within(lambda: socket.create_connection((target, port), timeout=_PATIENCE_S)):
        assert _accepts(router.listeners.tcp) == (target, port, router.slot.address)


def test_questions_reach_the_resolver_by_both_protocols_and_are_answered(router: Wire) -> None:
    assert router.listeners is not None
    asking = router.open(socket.AF_INET, socket.SOCK_DGRAM)
    asking.sendto(b"question", (GATEWAY, 53))
    router.listeners.dns_udp.settimeout(_PATIENCE_S)
    data, peer = router.listeners.dns_udp.recvfrom(100)
    assert (data, peer[0]) == (b"question", router.slot.address)
    router.listeners.dns_udp.sendto(b"answer", peer)
    assert arrives(asking, expected=True) == b"answer"
    with router.within(lambda: socket.create_connection((GATEWAY, 53), timeout=_PATIENCE_S)):
        assert _accepts(router.listeners.dns_tcp) == (GATEWAY, 53, router.slot.address)


def test_nothing_is_tracked(router: Wire) -> None:
    assert router.listeners is not None
    count = Path("/proc/sys/net/netfilter/nf_conntrack_count")
    with router.within(lambda: socket.create_connection((_ELSEWHERE, 80), timeout=_PATIENCE_S)):
        assert _accepts(router.listeners.tcp)
        assert router.at_hub(lambda: count.read_text().strip() if count.exists() else "0") == "0"


# --- what does not, each beside its control ----------------------------------------------------------------------------


@pytest.mark.parametrize("port", [123, 443, 853, 5353])
def test_udp_is_dropped_but_for_questions(wire: Wire, port: int) -> None:
    at_hub = _udp_at(wire, wire.hub, port)
    wire.open(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"quic", (GATEWAY, port))
    assert arrives(at_hub, expected=_is_open(wire)) == (b"quic" if _is_open(wire) else None)


def test_icmp_is_dropped(wire: Wire) -> None:
    pinging = wire.open(socket.AF_INET, socket.SOCK_RAW, _ICMP)
    echo = struct.pack("!BBHHH", 8, 0, 0, 7, 7) + b"tunnel"
    pinging.sendto(echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:], (GATEWAY, 0))
    at_hub = wire.open(socket.AF_INET, socket.SOCK_RAW, _ICMP, at=wire.hub)
    pinging.sendto(echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:], (GATEWAY, 0))
    assert (arrives(at_hub, expected=_is_open(wire)) is not None) is _is_open(wire)
    assert (arrives(pinging, expected=_is_open(wire)) is not None) is _is_open(wire)


def test_other_protocols_are_dropped(wire: Wire) -> None:
    at_hub = wire.open(socket.AF_INET, socket.SOCK_RAW, _GRE, at=wire.hub)
    wire.open(socket.AF_INET, socket.SOCK_RAW, _GRE).sendto(b"\0\0\x08\0tunnel", (GATEWAY, 0))
    assert (arrives(at_hub, expected=_is_open(wire)) is not None) is _is_open(wire)


def test_no_link_has_an_ipv6_address(wire: Wire) -> None:
    name = f"v{wire.slot.index}"

    def has_one() -> bool:
        return "fe80" in wire.ip("-6", "address", "show", "dev", name, at=wire.hub)

    # The kernel gives the control its address when it has noticed that the link is up.
    assert (eventually(has_one) if _is_open(wire) else has_one()) is _is_open(wire)
    assert "inet6" not in wire.ip("address")


def test_ipv6_is_dropped_even_where_somebody_turned_it_on(wire: Wire) -> None:
    name = f"v{wire.slot.index}"
    # Without waiting for a proof that the address is unique: the control's first packet must arrive.
    wire.at_hub(lambda: set_kernel({f"ipv6/conf/{name}/{key}": 0 for key in ("disable_ipv6", "accept_dad")}))
    wire.ip("address", "add", "fd00::1/64", "dev", name, "nodad", at=wire.hub)
    at_hub = wire.open(socket.AF_INET6, socket.SOCK_DGRAM, at=wire.hub)
    at_hub.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    at_hub.bind(("::", 53))
    # IPv6 takes a link for ready only when it has been told so, some time after it carries packets.

    def gets_there() -> bool:
        wire.send(ipv6_udp("fd00::2", "fd00::1", 53, b"hello"), ethertype=0x86DD)
        return arrives(at_hub) == b"hello"

    if _is_open(wire):
        assert eventually(gets_there)
    else:
        assert not any(gets_there() for _ in range(_TRIES))


@pytest.mark.parametrize("source", ["100.64.0.6", "100.64.0.77", "127.0.0.1", GATEWAY, "8.8.8.8", "0.0.0.0"])
def test_a_spoofed_source_is_dropped(wire: Wire, source: str) -> None:
    listener = wire.listeners.dns_udp if wire.listeners else _udp_at(wire, wire.hub, 53)
    wire.send(ipv4(wire.slot.address, GATEWAY, 17, udp(53, b"own")))
    assert arrives(listener, expected=True) == b"own", "the control: by its own address it arrives"
    wire.send(ipv4(source, GATEWAY, 17, udp(53, b"spoofed")))
    # The kernel itself takes nothing from outside for its own, so these are dropped without any rule.
    believed = _is_open(wire) and source not in ("127.0.0.1", "0.0.0.0", GATEWAY)
    assert arrives(listener, expected=believed) == (b"spoofed" if believed else None)


def test_a_connection_from_a_neighbours_address_is_dropped(wire: Wire) -> None:
    listener = wire.listeners.tcp if wire.listeners else _tcp_at(wire, wire.hub, 80)
    wire.ip("address", "add", f"{wire.neighbour.address}/32", "dev", "eth0")
    # Answers go where the address is at home, so even the believing one never hears the end of the handshake: what
    # tells is whether it has begun one.
    half_open = wire.open(socket.AF_INET, socket.SOCK_STREAM)
    half_open.bind((wire.neighbour.address, 0))
    half_open.settimeout(0.4)
    with contextlib.suppress(TimeoutError, ConnectionError):
        half_open.connect((GATEWAY, 80))
    assert _accepts(listener, expected=False) is None
    own = wire.open(socket.AF_INET, socket.SOCK_STREAM)
    own.bind((wire.slot.address, 0))
    own.settimeout(_PATIENCE_S)
    own.connect((GATEWAY, 80))
    accepted = _accepts(listener)
    assert accepted is not None
    assert accepted[2] == wire.slot.address


def _tcp_at(wire: Wire, where: int, port: int) -> socket.socket:
    listener = wire.open(socket.AF_INET, socket.SOCK_STREAM, at=where)
    listener.bind(("0.0.0.0", port))
    listener.listen()
    return listener


def test_a_service_in_the_router_is_out_of_reach(wire: Wire) -> None:
    service = _tcp_at(wire, wire.hub, 8080)
    with wire.within(lambda: socket.create_connection((GATEWAY, 8080), timeout=_PATIENCE_S)):
        assert (_accepts(service, expected=_is_open(wire)) is not None) is _is_open(wire)


Probe = Callable[[Wire], None]


def _by_address(wire: Wire) -> None:
    wire.open(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hello", (wire.neighbour.address, 53))


def _by_frame(wire: Wire) -> None:
    wire.send(ipv4(wire.slot.address, wire.neighbour.address, 17, udp(53, b"hello")))


def _by_route(wire: Wire) -> None:
    wire.ip("route", "add", f"{wire.neighbour.address}/32", "via", GATEWAY)
    _by_address(wire)


@pytest.mark.parametrize("probe", [_by_address, _by_frame, _by_route])
def test_a_neighbour_cannot_be_reached_by_datagrams(wire: Wire, probe: Probe) -> None:
    at_neighbour = _udp_at(wire, wire.neighbour.namespace, 53)
    probe(wire)
    assert arrives(at_neighbour, expected=_is_open(wire)) == (b"hello" if _is_open(wire) else None)


def test_a_neighbour_cannot_be_connected_to(wire: Wire) -> None:
    at_neighbour = _tcp_at(wire, wire.neighbour.namespace, 80)
    with wire.within(lambda: socket.create_connection((wire.neighbour.address, 80), timeout=_PATIENCE_S)):
        assert (_accepts(at_neighbour, expected=_is_open(wire)) is not None) is _is_open(wire)


def test_a_neighbour_cannot_be_reached_over_a_broadcast(wire: Wire) -> None:
    listener = wire.listeners.dns_udp if wire.listeners else _udp_at(wire, wire.hub, 53)
    wire.send(ipv4("0.0.0.0", "255.255.255.255", 17, udp(53, b"hello")), to=b"\xff" * 6)
    assert arrives(listener, expected=_is_open(wire)) == (b"hello" if _is_open(wire) else None)


def test_foreign_hardware_addresses_do_not_fill_the_hosts_table(wire: Wire) -> None:
    raw, own = wire.frames()
    for number in range(200):
        source = struct.pack("!I", 0x0A000001 + number)
        question = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + own + source + b"\0" * 6 + socket.inet_aton(GATEWAY)
        raw.send(b"\xff" * 6 + own + b"\x08\x06" + question)

    def is_full() -> bool:
        known = wire.ip("neigh", at=wire.hub).splitlines()
        return len([line for line in known if line.startswith("10.0.")]) > 100

    assert (eventually(is_full) if _is_open(wire) else is_full()) is _is_open(wire)


def test_a_flood_of_questions_is_cut_and_a_neighbours_are_not(router: Wire) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        took_s, got = _asked(router)
        most = _QUESTIONS_AT_ONCE + _QUESTIONS_PER_S * took_s
        assert 0 < got.count(b"flood") <= most + _STRAY
        if most < _FLOOD * _CUT:
            return
        assert time.monotonic() < deadline, "this machine is too slow to flood anything"


def _asked(router: Wire) -> tuple[float, list[bytes]]:
    """How long a flood took to arrive, and what did; nobody listens until all is asked, the neighbour's question too."""
    assert router.listeners is not None
    listener = router.listeners.dns_udp
    flooding = router.open(socket.AF_INET, socket.SOCK_DGRAM)
    asking = router.open(socket.AF_INET, socket.SOCK_DGRAM, at=router.neighbour.namespace)
    began = time.monotonic()
    for _ in range(_FLOOD):
        flooding.sendto(b"flood", (GATEWAY, 53))
    asking.sendto(b"mine", (GATEWAY, 53))
    got: list[bytes] = []
    while b"mine" not in got:
        data = arrives(listener, expected=True)
        assert data is not None, "the control: what is under the limit arrives"
        got.append(data)
    while (data := arrives(listener)) is not None:
        got.append(data)
    return time.monotonic() - began, got


def test_a_flood_of_connections_is_cut_and_a_neighbours_are_not(router: Wire) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        took_s, accepted = _flooded(router)
        assert router.neighbour.address in accepted, "the control: what is under the limit arrives"
        most = _CONNECTIONS_AT_ONCE + _CONNECTIONS_PER_S * took_s
        assert 0 < accepted.count(router.slot.address) <= most + _STRAY
        if most < _FLOOD * _CUT:
            return
        assert time.monotonic() < deadline, "this machine is too slow to flood anything"


def _flooded(router: Wire) -> tuple[float, list[str]]:
    """How long a flood took, and from where connections were taken meanwhile, the neighbour's one among them."""
    assert router.listeners is not None
    accepted: list[str] = []
    is_over = threading.Event()
    taking = threading.Thread(target=_take_all, args=(router.listeners.tcp, accepted, is_over))
    taking.start()
    try:
        with contextlib.ExitStack() as open_ones:
            socks = [open_ones.enter_context(router.open(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(_FLOOD)]
            began = time.monotonic()
            for sock in socks:
                sock.setblocking(False)
                sock.connect_ex((_ELSEWHERE, 80))
        # They are closed, so that none that was dropped is begun once more.
        took_s = time.monotonic() - began
        with router.open(socket.AF_INET, socket.SOCK_STREAM, at=router.neighbour.namespace) as mine:
            mine.settimeout(_PATIENCE_S)
            mine.connect((_ELSEWHERE, 80))
            eventually(lambda: router.neighbour.address in accepted)
    finally:
        is_over.set()
        taking.join()
    return took_s, accepted


def _take_all(listener: socket.socket, peers: list[str], is_over: threading.Event) -> None:
    """Accept until it is over and none has come for a while."""
    while (connection := _accepts(listener, expected=False)) is not None or not is_over.is_set():
        if connection is not None:
            peers.append(connection[2])


# --- its life ----------------------------------------------------------------------------------------------------------


def test_with_nobody_listening_nothing_passes(router: Wire) -> None:
    assert router.listeners is not None
    with router.within(lambda: socket.create_connection((_ELSEWHERE, 80), timeout=_PATIENCE_S)):
        assert _accepts(router.listeners.tcp), "the control: it passed while somebody did"
    router.listeners.close()
    for target in (_ELSEWHERE, GATEWAY, router.neighbour.address):
        with pytest.raises((TimeoutError, ConnectionError)):
            router.within(lambda to=target: socket.create_connection((to, 80), timeout=0.4))  # type: ignore[misc]


def test_a_router_that_is_opened_again_is_the_same_one_with_its_links(data_dir: Path) -> None:
    first = Router.open(data_dir / "router")
    assert first.is_new
    slot = first.slot(9)
    first.close()
    second = Router.open(data_dir / "router")
    assert not second.is_new
    listeners = second.listen()
    with netns.inside(slot.namespace, lambda: socket.create_connection((_ELSEWHERE, 80), timeout=_PATIENCE_S)):
        assert _accepts(listeners.tcp) == (_ELSEWHERE, 80, slot.address)
    listeners.close()
    slot.close()
    second.remove()
    assert not netns.is_held(data_dir / "router")


def test_a_file_without_a_namespace_is_not_taken_for_a_router(data_dir: Path) -> None:
    (data_dir / "router").touch()
    router = Router.open(data_dir / "router")
    assert router.is_new
    router.remove()


def test_a_closed_slot_takes_its_link_with_it(data_dir: Path) -> None:
    router = Router.open(data_dir / "router")
    hub = netns.open_held(data_dir / "router")
    wire = Wire(hub=hub, slot=router.slot(5), neighbour=router.slot(6))
    assert "v5@" in wire.ip("link", at=hub), "the control: it was there"
    wire.slot.close()
    while "v5@" in wire.ip("link", at=hub):
        pass
    assert "v6@" in wire.ip("link", at=hub)
    wire.neighbour.close()
    router.remove()
    wire.stack.close()
    os.close(hub)


async def test_a_sandbox_gets_the_next_slot_when_the_kernel_still_holds_the_name_of_one(data_dir: Path) -> None:
    router = Router.open(data_dir / "router")
    with contextlib.ExitStack() as stack:
        stack.callback(router.remove)
        stack.callback(router.slot(FIRST_INDEX).close)
        with pytest.raises(OSError, match="File exists"):
            router.slot(FIRST_INDEX)
        spares = Spares(router, Indices(data_dir / "next"), frozenset())
        slot = await spares.take()
        stack.callback(slot.close)
        assert slot.index == FIRST_INDEX + 1
