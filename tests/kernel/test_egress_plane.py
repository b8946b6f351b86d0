"""The data plane between real namespaces, under the router's own rules."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from k8e.egress import netns, proxy
from k8e.egress.desk import Desk, Dial, Member
from k8e.egress.sockets import reset
from k8e.model import Grant
from tests.support import egress_peer
from tests.support.descriptors import descriptors, opened_and_kept
from tests.support.egress_lab import OUTSIDE, PRIVATE, SERVER, TALKER, Guest, PlaneLab, policy
from tests.support.egress_peer import GATEWAY, lookup
from tests.support.eventually import eventually
from tests.support.hellos import client_hello
from tests.support.leaks import Lend

_PEER = str(Path(egress_peer.__file__))
_PATIENCE_S = 30.0
_BULK, _OTHER_BULK = 9000, 9001


async def _broker(
    client: socket.socket, first_bytes: bytes, name: str, member: Member, dial: Dial, desk: Desk
) -> tuple[int, int]:
    """Says who it is and closes: the real one has its own tests."""
    client.send(b"broker of %s, %d bytes" % (name.encode(), len(first_bytes)))
    return 0, 0


class Bulk:
    """Measured connections, by programs of their own."""

    def __init__(self, lab: PlaneLab) -> None:
        self._lab = lab
        for port in (_BULK, _OTHER_BULK):
            server = lab.spawn(lab.server, _PEER, "serve", str(port))
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"

    def _run(self, guest: Guest, what: str, amount: int) -> str:
        process = self._lab.spawn(guest.slot.namespace, _PEER, what, "one.test", str(_BULK), str(amount))
        output, _ = process.communicate(timeout=100)
        return output.decode()

    def download(self, guest: Guest, amount: int) -> float:
        return float(self._run(guest, "download", amount))

    @contextlib.contextmanager
    def downloading(self, guest: Guest, amount: int) -> Iterator[None]:
        """A download that goes on inside the block, and is complete after it."""
        process = self._lab.spawn(guest.slot.namespace, _PEER, "download", "one.test", str(_BULK), str(amount))
        yield
        output, _ = process.communicate(timeout=100)
        assert float(output) > 0

    def pings(self, guest: Guest, times: int) -> int:
        return len(json.loads(self._run(guest, "ping", times)))

    def crowd(self, guest: Guest, size: int) -> dict[str, int]:
        result: dict[str, int] = json.loads(self._run(guest, "crowd", size))
        return result

    @contextlib.contextmanager
    def flood(self, guest: Guest, what: str, amount: int) -> Iterator[None]:
        process = self._lab.spawn(guest.slot.namespace, _PEER, what, "one.test", str(_OTHER_BULK), str(amount))
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.kill()
            process.wait()
            self._lab.gone(guest)


@pytest.fixture(scope="module")
def lab(lend: Lend) -> Iterator[PlaneLab]:
    before = descriptors()
    made = PlaneLab(lend("plane"), broker=_broker)
    try:
        made.names.update({"one.test": (SERVER,), "two.test": (SERVER,), "talker.test": (TALKER,)})
        world = made.spawn(made.server, _PEER, "world")
        assert world.stdout is not None
        assert world.stdout.readline() == b"ready\n"
        yield made
    finally:
        made.close()
    assert opened_and_kept(before) == []


@pytest.fixture(scope="module")
def bulk(lab: PlaneLab) -> Bulk:
    return Bulk(lab)


@pytest.fixture
def guest(lab: PlaneLab, request: pytest.FixtureRequest) -> Iterator[Guest]:
    made = lab.add(request.node.name, policy("one.test", "one.test:7"))
    yield made
    lab.gone(made)


@pytest.fixture
def neighbour(lab: PlaneLab, request: pytest.FixtureRequest) -> Iterator[Guest]:
    made = lab.add(f"neighbour of {request.node.name}", policy("two.test", "two.test:7"))
    yield made
    lab.gone(made)


def _address(guest: Guest, name: str) -> str:
    return guest.do(lambda: str(lookup(name).answer[0][0]))


def _connect(guest: Guest, address: str, port: int) -> socket.socket:
    """A connection, which may have been cut already: the reset can come before we hear that it was taken."""
    try:
        return guest.do(lambda: socket.create_connection((address, port), timeout=_PATIENCE_S))
    except ConnectionResetError:
        return _cut_at_once()


def _cut_at_once() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), timeout=_PATIENCE_S)
        far, _ = listener.accept()
    reset(far)
    return near


def _dial(guest: Guest, name: str, port: int) -> socket.socket:
    return _connect(guest, _address(guest, name), port)


def _echoes(sock: socket.socket, data: bytes = b"hello") -> bool:
    sock.sendall(data)
    return sock.recv(len(data), socket.MSG_WAITALL) == data


def _response(sock: socket.socket) -> bytes:
    """A web server's, which sends a request's head back as its body."""
    data = b""
    while data.count(b"\r\n\r\n") < 2:
        piece = sock.recv(4096)
        if not piece:
            raise ConnectionError(f"closed after {data!r}")
        data += piece
    return data


def _is_cut(sock: socket.socket) -> bool:
    """Whether it was reset; a connection that merely stays silent is an error."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return False


def _refused(guest: Guest, address: str, port: int, first: bytes = b"hello") -> bool:
    try:
        with _connect(guest, address, port) as sock:
            sock.sendall(first)
            return _is_cut(sock)
    except (ConnectionResetError, BrokenPipeError):
        return True


# --- names ---


def test_a_listed_name_is_reached_and_its_connection_told_from_beginning_to_end(lab: PlaneLab, guest: Guest) -> None:
    with _dial(guest, "one.test", 7) as sock:
        assert _echoes(sock, b"12345")
    assert lab.told(guest, "allowed", protocol="tcp", name="one.test", address=SERVER, port=7, rule="one.test:7")
    assert eventually(lambda: bool(lab.told(guest, "closed", name="one.test", bytes_sent=5, bytes_received=5)))
    assert guest.member.sandbox in lab.remembered


def test_a_name_off_the_list_does_not_exist(lab: PlaneLab, guest: Guest) -> None:
    assert guest.do(lambda: lookup("one.test").rcode()) == dns.rcode.NOERROR
    assert guest.do(lambda: lookup("two.test").rcode()) == dns.rcode.NXDOMAIN
    assert lab.told(guest, "denied", protocol="dns", name="two.test")


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "TXT"])
def test_a_listed_name_has_only_an_address(guest: Guest, kind: str) -> None:
    assert guest.do(lambda: lookup("one.test", "A").answer)
    assert guest.do(lambda: lookup("one.test", kind).answer) == []


def test_names_are_answered_over_tcp_too(guest: Guest) -> None:
    def ask(name: str) -> dns.rcode.Rcode:
        query = dns.message.make_query(name, "A").to_wire()
        with socket.create_connection((GATEWAY, 53), timeout=_PATIENCE_S) as sock:
            sock.sendall(len(query).to_bytes(2, "big") + query)
            size = int.from_bytes(sock.recv(2, socket.MSG_WAITALL), "big")
            return dns.message.from_wire(sock.recv(size, socket.MSG_WAITALL)).rcode()

    assert guest.do(lambda: ask("one.test")) == dns.rcode.NOERROR
    assert guest.do(lambda: ask("two.test")) == dns.rcode.NXDOMAIN


def test_a_flood_of_questions_leaves_the_neighbour_its_answers(guest: Guest, neighbour: Guest) -> None:
    def flood() -> None:
        query = dns.message.make_query("x.test", "A").to_wire()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(20_000):
                sock.sendto(query, (GATEWAY, 53))

    guest.do(flood)
    assert neighbour.do(lambda: lookup("two.test").answer)


# --- addresses ---


def test_a_raw_address_means_nothing_unless_its_network_is_listed(lab: PlaneLab, guest: Guest) -> None:
    assert _refused(guest, SERVER, 7)
    assert lab.told(guest, "denied", protocol="tcp", address=SERVER, port=7)
    lab.set_policy(guest, policy("203.0.113.0/24:7"))
    with _connect(guest, SERVER, 7) as sock:
        assert _echoes(sock)
    assert _refused(guest, SERVER, 8443)


def test_an_address_of_another_sandbox_s_book_means_nothing_here(guest: Guest, neighbour: Guest) -> None:
    theirs = _address(neighbour, "two.test")
    with _connect(neighbour, theirs, 7) as sock:
        assert _echoes(sock)
    assert _refused(guest, theirs, 7)
    # In its own book the same address is its own name's, whatever it is in the other.
    assert _address(guest, "one.test") == theirs
    with _connect(guest, theirs, 7) as sock:
        assert _echoes(sock)


def test_ports_that_the_rule_does_not_name_are_closed_and_so_is_the_gateway(guest: Guest) -> None:
    address = _address(guest, "one.test")
    with _connect(guest, address, 7) as sock:
        assert _echoes(sock)
    assert _refused(guest, address, 8443)
    assert _refused(guest, GATEWAY, 80)
    assert _refused(guest, GATEWAY, 15001)


@pytest.mark.parametrize("target", ["127.0.0.1", "169.254.169.254", OUTSIDE, PRIVATE, "100.64.0.2", "0.0.0.0", "::1"])
def test_a_name_that_leads_inside_is_not_dialled(lab: PlaneLab, guest: Guest, target: str) -> None:
    lab.names["rebound.test"] = (target,)
    lab.set_policy(guest, policy("rebound.test:7"))
    assert _refused(guest, _address(guest, "rebound.test"), 7)
    assert [each for each in lab.told(guest, "denied", name="rebound.test", port=7) if "leads to" in each.reason]
    lab.names["rebound.test"] = (target, SERVER)
    with _dial(guest, "rebound.test", 7) as sock:
        assert _echoes(sock)


@contextlib.contextmanager
def _listening_here(lab: PlaneLab, prefix: str) -> Iterator[socket.socket]:
    """A server of this machine on all its addresses, while a whole prefix is routed to the machine."""
    listener = netns.inside(
        lab.outside, lambda: socket.create_server(("::", 7), family=socket.AF_INET6, dualstack_ipv6=True)
    )
    family = "-6" if ":" in prefix else "-4"
    netns.inside(
        lab.outside, lambda: subprocess.run(["ip", family, "route", "add", "local", prefix, "dev", "lo"], check=True)
    )
    try:
        with listener:
            listener.setblocking(False)
            yield listener
    finally:
        netns.inside(
            lab.outside,
            lambda: subprocess.run(["ip", family, "route", "del", "local", prefix, "dev", "lo"], check=True),
        )


@pytest.mark.parametrize(
    ("prefix", "target"),
    [
        ("198.51.100.0/24", "198.51.100.77"),
        ("198.51.100.0/24", "::ffff:198.51.100.77"),
        ("198.51.100.0/24", "64:ff9b::198.51.100.77"),
        ("2001:db9:77::/48", "2001:db9:77::5"),
        ("64:ff9b::/96", "64:ff9b::198.51.100.77"),
    ],
)
def test_an_address_that_is_routed_to_this_machine_is_not_dialled(
    lab: PlaneLab, guest: Guest, prefix: str, target: str
) -> None:
    lab.names["rebound.test"] = (target,)
    lab.set_policy(guest, policy("rebound.test:7", "198.51.100.0/24:7"))
    with _listening_here(lab, prefix) as listener:
        assert _refused(guest, _address(guest, "rebound.test"), 7)
        told = lab.told(guest, "denied", name="rebound.test", port=7)
        assert [each.reason for each in told] == ["it leads to one of this machine's own addresses"]
        if prefix == "198.51.100.0/24":
            assert _refused(guest, "198.51.100.77", 7)
        with pytest.raises(BlockingIOError):
            listener.accept()
        # Control: whoever is on this machine reaches it by such an address.
        there = target if "." not in target or prefix.startswith("64:") else "198.51.100.77"
        netns.inside(lab.outside, lambda: socket.create_connection((there, 7), timeout=_PATIENCE_S).close())
        listener.accept()[0].close()
    assert _refused(guest, _address(guest, "rebound.test"), 7)
    assert "own addresses" not in lab.told(guest, "denied", name="rebound.test", port=7)[-1].reason, (
        "asked anew each time"
    )


def test_a_private_address_is_dialled_where_its_network_is_listed(lab: PlaneLab, guest: Guest) -> None:
    lab.names["mirror.test"] = (PRIVATE,)
    lab.set_policy(guest, policy("mirror.test:7"))
    assert _refused(guest, _address(guest, "mirror.test"), 7)
    lab.set_policy(guest, policy("mirror.test:7", "10.77.0.0/24"))
    with _dial(guest, "mirror.test", 7) as sock:
        assert _echoes(sock)


def test_a_name_that_does_not_exist_outside_is_refused_with_the_reason(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("nowhere.test:7"))
    assert _refused(guest, _address(guest, "nowhere.test"), 7)
    assert [each.reason for each in lab.told(guest, "denied", name="nowhere.test")] == ["the name has no address"]


def test_the_open_mode_reaches_every_public_name_and_no_private_address(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy(mode="open"))
    with _dial(guest, "two.test", 8443) as sock:
        assert _echoes(sock)
    lab.names["inside.test"] = (PRIVATE,)
    assert _refused(guest, _address(guest, "inside.test"), 7)
    assert _refused(guest, PRIVATE, 7)


# --- TLS ---


@pytest.mark.parametrize("name", ["one.test", "ONE.test", None])
def test_a_hello_for_the_name_or_for_nobody_passes(guest: Guest, name: str | None) -> None:
    with _dial(guest, "one.test", 443) as sock:
        assert _echoes(sock, client_hello(name))


def test_a_hello_in_pieces_passes(guest: Guest) -> None:
    hello = client_hello("one.test")
    with _dial(guest, "one.test", 443) as sock:
        for start in range(0, len(hello), 40):
            sock.sendall(hello[start : start + 40])
            time.sleep(0.001)
        assert sock.recv(len(hello), socket.MSG_WAITALL) == hello


def test_a_hello_for_another_name_is_cut_and_told_with_that_name(lab: PlaneLab, guest: Guest) -> None:
    address = _address(guest, "one.test")
    assert _refused(guest, address, 443, client_hello("two.test"))
    assert lab.told(guest, "denied", protocol="tls", name="two.test", port=443)
    with _connect(guest, address, 443) as sock:
        assert _echoes(sock, client_hello("one.test"))


@pytest.mark.parametrize("first", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_what_is_not_tls_is_cut_on_443(guest: Guest, first: bytes) -> None:
    assert _refused(guest, _address(guest, "one.test"), 443, first)


def test_any_protocol_passes_where_the_port_is_named_but_a_wrong_hello_does_not(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("one.test:443"))
    address = _address(guest, "one.test")
    with _connect(guest, address, 443) as sock:
        assert _echoes(sock, b"SSH-2.0-x\r\n")
    assert _refused(guest, address, 443, client_hello("two.test"))
    assert _refused(guest, address, 443, b"\x16\x03\x01\x00\x05hello")


def test_a_server_may_speak_first_where_the_port_is_named(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("talker.test:443"))
    with _dial(guest, "talker.test", 443) as sock:
        assert sock.recv(13, socket.MSG_WAITALL) == b"220 welcome\r\n"
        assert _echoes(sock)


def test_a_silent_client_s_late_hello_is_still_judged(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("one.test:443"))
    address = _address(guest, "one.test")
    with _connect(guest, address, 443) as right, _connect(guest, address, 443) as wrong:
        # The proxy has lost patience with both, and asked the server whether it speaks first.
        assert eventually(lambda: len(lab.told(guest, "allowed", port=443)) > 0)
        assert _echoes(right, client_hello("one.test"))
        wrong.sendall(client_hello("two.test"))
        assert _is_cut(wrong)


def test_a_hello_that_never_ends_is_cut(lab: PlaneLab, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    address = _address(guest, "one.test")
    with monkeypatch.context() as hurried:
        hurried.setattr(proxy, "_FIRST_BYTES_S", 0.2)
        for first in (client_hello("one.test")[:-1], b"\x16"):
            assert _refused(guest, address, 443, first)
        assert [each for each in lab.told(guest, "denied", port=443) if "slow" in each.reason]
        with _connect(guest, address, 443) as sock:
            assert _is_cut(sock)
    # The control, with all the time that a busy machine may need.
    with _connect(guest, address, 443) as sock:
        assert _echoes(sock, client_hello("one.test"))


def test_a_real_handshake_reaches_the_server_unchanged(guest: Guest) -> None:
    """The echo sends the client's own hello back, which no client takes for a server's."""
    context = ssl.create_default_context()
    with _dial(guest, "one.test", 443) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock, server_hostname="one.test")


def test_a_host_with_a_secret_is_spoken_for(lab: PlaneLab, guest: Guest) -> None:
    guest.member.grants = (Grant(host="one.test", header="authorization", placeholder="k8e-x", value="v"),)
    hello = client_hello("one.test")
    with _dial(guest, "one.test", 443) as sock:
        sock.sendall(hello)
        assert sock.recv(100, socket.MSG_WAITALL) == b"broker of one.test, %d bytes" % len(hello)
    assert _refused(guest, _address(guest, "one.test"), 443, client_hello("two.test"))
    lab.set_policy(guest, policy("one.test:443"))
    assert _refused(guest, _address(guest, "one.test"), 443, b"plain")


# --- HTTP ---


def test_every_request_s_host_is_judged(lab: PlaneLab, guest: Guest) -> None:
    with _dial(guest, "one.test", 80) as sock:
        for _ in range(50):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
            assert b"Host: one.test" in _response(sock)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: two.test\r\n\r\n")
        assert _is_cut(sock)
    assert lab.told(guest, "denied", protocol="http", name="two.test", port=80)
    assert lab.told(guest, "allowed", protocol="http", name="one.test", port=80)


def test_what_is_not_http_is_cut_on_80_unless_the_port_is_named(lab: PlaneLab, guest: Guest) -> None:
    address = _address(guest, "one.test")
    assert _refused(guest, address, 80, b"\x00\x01\x02\r\n\r\n")
    lab.set_policy(guest, policy("one.test:80"))
    assert _refused(guest, address, 80, b"GET / HTTP/1.1\r\nHost: two.test\r\n\r\n")
    with _connect(guest, address, 80) as sock:
        sock.sendall(b"SSH-2.0-x\r\n\r\n")
        assert b"SSH-2.0-x" in _response(sock)


# --- changes and ends ---


def test_a_change_of_policy_cuts_what_it_no_longer_allows_and_nothing_else(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("one.test", "one.test:7", "two.test:7"))
    with (
        _dial(guest, "one.test", 7) as raw,
        _dial(guest, "one.test", 80) as web,
        _dial(guest, "one.test", 443) as silent,
        _dial(guest, "two.test", 7) as kept,
    ):
        assert _echoes(raw)
        assert _echoes(kept)
        web.sendall(b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
        assert _response(web)
        lab.set_policy(guest, policy("two.test:7"))
        assert [_is_cut(sock) for sock in (raw, web, silent)] == [True] * 3
        assert _echoes(kept)
    assert _refused(guest, guest.member.book.address("one.test")[0], 7)
    lab.set_policy(guest, policy("one.test:7"))
    with _dial(guest, "one.test", 7) as sock:
        assert _echoes(sock)


def test_what_is_neither_tls_nor_http_is_cut_when_its_port_is_no_longer_named(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("one.test:443"))
    address = _address(guest, "one.test")
    with (
        _connect(guest, address, 443) as anything,
        _connect(guest, address, 443) as silent,
        _connect(guest, address, 443) as tls,
    ):
        assert _echoes(anything, b"SSH-2.0-x\r\n")
        assert _echoes(tls, client_hello("one.test"))
        lab.set_policy(guest, policy("one.test"))
        assert _is_cut(anything)
        assert _is_cut(silent)
        assert _echoes(tls), "the control"


def test_when_a_sandbox_goes_its_connections_do(lab: PlaneLab, guest: Guest, neighbour: Guest) -> None:
    with _dial(guest, "one.test", 7) as sock, _dial(neighbour, "two.test", 7) as other:
        assert _echoes(sock)
        lab.gone(guest)
        assert _is_cut(sock)
        assert _echoes(other)


def test_half_a_close_is_passed_on(guest: Guest) -> None:
    with _dial(guest, "one.test", 7) as sock:
        sock.sendall(b"all of it")
        sock.shutdown(socket.SHUT_WR)
        data = b""
        while piece := sock.recv(100):
            data += piece
        assert data == b"all of it"


# --- limits ---


def test_connections_beyond_the_cap_are_reset_and_places_are_given_back(lab: PlaneLab, guest: Guest) -> None:
    lab.set_policy(guest, policy("one.test:7", connections=3))
    address = _address(guest, "one.test")
    held = [_connect(guest, address, 7) for _ in range(3)]
    assert all(_echoes(sock) for sock in held)
    assert _refused(guest, address, 7)
    assert [each for each in lab.told(guest, "denied", port=7) if "more than 3" in each.reason]
    held.pop().close()
    assert eventually(lambda: not _refused_once(guest, address))
    for sock in held:
        sock.close()


def _refused_once(guest: Guest, address: str) -> bool:
    try:
        with _connect(guest, address, 7) as sock:
            return not _echoes(sock)
    except OSError:
        return True


def test_a_sandbox_with_a_rate_takes_longer_than_one_without(lab: PlaneLab, bulk: Bulk) -> None:
    limited = lab.add("limited", policy("one.test:9000", bytes_per_s=4_000_000))
    free = lab.add("free", policy("one.test:9000"))
    slow = bulk.download(limited, 8_000_000)
    assert slow < 8
    # Its own speed is the machine's, which may be held up at any moment; the limit of the other is there every time.
    assert eventually(lambda: bulk.download(free, 8_000_000) > slow)


def test_five_hundred_connections_are_open_at_once(lab: PlaneLab, bulk: Bulk) -> None:
    guest = lab.add("crowd", policy("one.test:9000"))
    assert bulk.crowd(guest, 500) == {"open": 500, "right": 500}


@pytest.mark.slow
def test_a_hundred_bulk_streams_do_not_take_the_neighbour_s_share(lab: PlaneLab, bulk: Bulk) -> None:
    flooding, quiet = lab.add("flood", policy("one.test:9001")), lab.add("quiet", policy("one.test:9000"))
    with bulk.flood(flooding, "hoard", 100):
        assert eventually(lambda: lab.carried(flooding) > 0)
        with bulk.downloading(quiet, 1 << 29):
            # From the first byte to the last that was seen: before and after it the others may have everything.
            assert eventually(lambda: lab.carried(quiet) > 0)
            begun = last = lab.carried_by(quiet, flooding)
            while (now := lab.carried_by(quiet, flooding))[0]:
                last = now
                time.sleep(0.002)
    mine, theirs = (after - before for before, after in zip(begun, last, strict=True))
    assert 0 < theirs < mine


@pytest.mark.slow
def test_ten_thousand_connections_leave_the_neighbour_its_own(lab: PlaneLab, bulk: Bulk) -> None:
    flooding = lab.add("knocking", policy("one.test:9001", connections=200))
    quiet = lab.add("beside", policy("one.test:9000"))
    with bulk.flood(flooding, "knock", 10_000):
        assert bulk.download(quiet, 1 << 28) > 0
        assert bulk.pings(quiet, 20) == 20
        assert eventually(lambda: bool(lab.told(flooding, "denied", port=_OTHER_BULK)))
        assert lab.connections(flooding) <= 200


def test_nothing_is_left_of_connections_that_ended_in_every_way(
    lab: PlaneLab, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_FIRST_BYTES_S", 0.2)
    address = _address(guest, "one.test")

    def every_way() -> None:
        for port, first in (
            (7, b"x"),
            (443, client_hello("one.test")),
            (443, client_hello("two.test")),
            (443, b"\x16"),
            (80, b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n"),
            (80, b"GET / HTTP/1.1\r\nHost: one.t"),
            (8443, b"x"),
        ):
            for how in (socket.SHUT_WR, socket.SHUT_RDWR, None):
                # A denial may come while we still connect.
                with contextlib.suppress(OSError), _connect(guest, address, port) as sock:
                    sock.sendall(first)
                    if how is not None:
                        sock.shutdown(how)

    every_way()
    assert eventually(lambda: lab.connections(guest) == 0)
    before = descriptors()
    for _ in range(3):
        every_way()
    assert eventually(lambda: lab.connections(guest) == 0)
    # But for pipes that wait for the next connections: how many were needed at once is not the same every time.
    assert eventually(lambda: {number for number, _ in descriptors() - before} <= lab.spare_pipes())
